// The Lennard-Jones liquid of argon.py: one warp per atom; energies (n,) eV, forces (n, 4) fixed point, virials (n, 9) eV.
extern "C" __global__ void argon(
    int n, const Atom* atoms, const int* rows, const int* counts, int stride, double epsilon, double sigma,
    double cutoff, int64* forces, double* energies, double* virials) {
  const int lane = threadIdx.x & 31, i = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (i >= n) return;
  const double s2 = sigma * sigma, s6c = pow(sigma / cutoff, 6.0);
  const double at_cutoff = 4 * epsilon * (s6c * s6c - s6c), slope = -24 * epsilon * (2 * s6c * s6c - s6c) / cutoff;
  double energy = 0, force[3] = {0, 0, 0}, virial[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0};
  for (int k = lane; k < counts[i]; k += 32) {
    const Atom other = atoms[rows[(size_t)i * stride + k]];
    const double d[3] = {other.x - atoms[i].x, other.y - atoms[i].y, other.z - atoms[i].z};
    const double r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
    if (r2 >= cutoff * cutoff) continue;
    const double r = sqrt(r2), s6 = s2 * s2 * s2 / (r2 * r2 * r2);
    energy += 0.5 * (4 * epsilon * (s6 * s6 - s6) - at_cutoff - slope * (r - cutoff));
    const double f = -24 * epsilon * (2 * s6 * s6 - s6) / r - slope;  // dE/dr
    for (int a = 0; a < 3; a++) {
      force[a] += f * d[a] / r;
      for (int b = 0; b < 3; b++) virial[3 * a + b] -= 0.5 * f * d[a] * d[b] / r;
    }
  }
  energy = warp_sum(energy);
  for (int a = 0; a < 3; a++) force[a] = warp_sum(force[a]);
  for (int k = 0; k < 9; k++) virial[k] = warp_sum(virial[k]);
  if (lane) return;
  energies[i] = energy;
  for (int a = 0; a < 3; a++) forces[4 * (size_t)i + a] = to_fixed(force[a]);
  for (int k = 0; k < 9; k++) virials[9 * (size_t)i + k] = virial[k];
}
