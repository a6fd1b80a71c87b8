pair_style deepmd copper.dp
pair_coeff * *
neighbor 1.0 bin
min_style cg
min_modify dmax 1.0e-2 line quadratic
thermo 1
thermo_style custom step pe press pxx pyy pzz pxy pxz pyz lx ly lz
thermo_modify norm no
