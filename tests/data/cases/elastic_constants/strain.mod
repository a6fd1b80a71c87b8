# one direction, strained both ways
if "${dir} == 1" then "variable len0 equal ${lx0}"
if "${dir} == 4" then "variable len0 equal ${lz0}"
variable sign index -1 1
label loop
clear
box tilt large
read_restart restart.equil
include potential.mod
variable delta equal ${sign}*${up}*${len0}
variable deltaxy equal ${sign}*${up}*xy
if "${dir} == 1" then &
  "change_box all x delta 0 ${delta} xy delta ${deltaxy} remap units box"
if "${dir} == 4" then &
  "change_box all yz delta ${delta} remap units box"
minimize 0.0 1.0e-10 ${maxiter} 10
variable tmp equal pxx
variable pxx1 equal ${tmp}
variable tmp equal pyz
variable pyz1 equal ${tmp}
if "${dir} == 1" then "variable now equal ${d1}" else "variable now equal ${d4}"
if "${sign} < 0" then "variable C${dir}neg equal ${now}" else "variable C${dir}pos equal ${now}"
next sign
jump strain.mod loop
variable C${dir} equal 0.5*(v_C${dir}neg+v_C${dir}pos)
variable dir delete
