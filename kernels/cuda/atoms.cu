// Everything of a step that is not the model: lists, ghosts, integration, sums.  Double precision.
//
// One thread per atom, bytes per atom about 100 to 200 a kernel, contiguous: well below 0.1 ns on a
// card with 4 TB/s.  The list build is one warp per centre: candidates of 25 columns of cells, 16 bytes
// each from the caches; it runs once in 20 or so steps.

#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)

// ---------------------------------------------------------------- order and ghosts

// Moves atoms into the cell along periodic directions (counting crossings in images) and makes the key
// that sorts them: type, then Z-order of cells of `parts` per lattice vector, then id, so that the order
// depends on types, positions and ids alone.  cell, inverse (3, 3): rows are lattice vectors.
// bits: of each coordinate of a cell; key = type | 3 bits | 32 bits of id, ignored atoms (type < 0) last.
extern "C" __global__ void wrap_atoms(
    int n, Atom* atoms, int* images, const int* types, int n_types, const double* cell, const double* inverse,
    const int* periodic, const int* parts, int bits, const int64* ids, int64* keys) {
  const int i = THREAD;
  if (i >= n) return;
  double x[3] = {atoms[i].x, atoms[i].y, atoms[i].z};
  uint64 code = 0;
  for (int k = 0; k < 3; k++) {
    double f = 0;
    for (int attempt = 0; attempt < 3; attempt++) {  // rounding may leave an atom on the upper face
      f = x[0] * inverse[k] + x[1] * inverse[3 + k] + x[2] * inverse[6 + k];
      const double whole = floor(f);
      if (!periodic[k] || !(whole != 0.0) || !(fabs(whole) < 1e6)) break;
      images[3 * i + k] += (int)whole;
      for (int c = 0; c < 3; c++) x[c] -= whole * cell[3 * k + c];
    }
    const int last = (1 << bits) - 1;
    const double part = floor(f * parts[k]) + (periodic[k] ? 0 : last / 2);
    const uint64 c = part > 0 ? (part < last ? (uint64)part : last) : 0;
    for (int bit = 0; bit < bits; bit++) code |= ((c >> bit) & 1) << (3 * bit + k);
  }
  atoms[i].x = x[0], atoms[i].y = x[1], atoms[i].z = x[2];
  const uint64 type = types[i] < 0 ? n_types : types[i];
  keys[i] = (int64)(((type << (3 * bits)) | code) << 32 | ((uint64)ids[i] & 0xffffffffull));
}

struct AtomArrays { Atom* atoms; Motion* motions; int64 *ids; int *types; double *masses; int *images; int64 *forces; };

__device__ __forceinline__ void copy_atom(const AtomArrays& from, int i, const AtomArrays& to, int k) {
  Atom atom = from.atoms[i];
  atom.owner = k;
  to.atoms[k] = atom;
  to.motions[k] = from.motions[i];
  to.ids[k] = from.ids[i], to.types[k] = from.types[i], to.masses[k] = from.masses[i];
  for (int c = 0; c < 3; c++) to.images[3 * (size_t)k + c] = from.images[3 * (size_t)i + c];
  for (int c = 0; c < 4; c++) to.forces[4 * (size_t)k + c] = from.forces[4 * (size_t)i + c];
}

// Atom order[k] becomes atom k (atom k, if order is null) of the second set of arrays.
extern "C" __global__ void permute_atoms(
    int n, const int64* order, Atom* atoms, Motion* motions, int64* ids, int* types, double* masses, int* images,
    int64* forces, Atom* atoms2, Motion* motions2, int64* ids2, int* types2, double* masses2, int* images2,
    int64* forces2) {
  const int k = THREAD;
  if (k >= n) return;
  const AtomArrays from = {atoms, motions, ids, types, masses, images, forces};
  const AtomArrays to = {atoms2, motions2, ids2, types2, masses2, images2, forces2};
  copy_atom(from, order ? (int)order[k] : k, to, k);
}

// Number of the box that holds each atom: as Partition.owners.  boundaries: the inner ones along each
// lattice vector, one axis after the other.
extern "C" __global__ void find_boxes(
    int n, const Atom* atoms, const double* inverse, const int* grid, const double* boundaries, int* boxes) {
  const int i = THREAD;
  if (i >= n) return;
  int box = 0;
  for (int k = 0; k < 3; k++) {
    const double f = atoms[i].x * inverse[k] + atoms[i].y * inverse[3 + k] + atoms[i].z * inverse[6 + k];
    int c = 0;
    while (c < grid[k] - 1 && boundaries[c] <= f) c++;
    box = box * grid[k] + c;
    boundaries += grid[k] - 1;
  }
  boxes[i] = box;
}

// Images of atom i, displaced by lattice vectors along periodic directions, inside `window` (lower and
// upper corner, fractions): their number or, if owners is not null, who and where, as entries from
// place + first[i] on.  Entry e is to be ghost with row of forces e + row at the process that gets it.
// own: the window is around this process's box; then the atom itself does not count, and forces on its
// images are added to its own row.
extern "C" __global__ void find_images(
    int n, const Atom* atoms, const int* types, const double* inverse, const int* periodic, const double* window,
    int own, int* number, const int* first, int place, int row, int* owners, int* rows, int* shifts) {
  const int i = THREAD;
  if (i >= n) return;
  int low[3] = {0, 0, 0}, high[3] = {0, 0, 0}, found = 0;
  for (int k = 0; k < 3; k++) {
    const double f = atoms[i].x * inverse[k] + atoms[i].y * inverse[3 + k] + atoms[i].z * inverse[6 + k];
    if (!periodic[k]) {
      if (f < window[k] || f > window[3 + k]) high[k] = -1;
    } else if (fabs(f) < 1e6) {
      low[k] = (int)ceil(window[k] - f), high[k] = (int)floor(window[3 + k] - f);
    }
  }
  if (types[i] >= 0) {
    for (int a = low[0]; a <= high[0]; a++)
      for (int b = low[1]; b <= high[1]; b++)
        for (int c = low[2]; c <= high[2]; c++) {
          if (own && a == 0 && b == 0 && c == 0) continue;
          if (owners) {
            const int e = place + first[i] + found;
            owners[e] = i, rows[e] = own ? i : row + e;
            shifts[3 * e] = a, shifts[3 * e + 1] = b, shifts[3 * e + 2] = c;
          }
          found++;
        }
  }
  if (!owners) number[i] = found;
}

// Ghosts follow their owners: the first n_outgoing entries into what other processes get, the others
// into atoms from `first` on.  Entries without an owner are spare room.
extern "C" __global__ void place_ghosts(
    int n, int n_outgoing, int first, Atom* atoms, Atom* outgoing, const int* owners, const int* rows,
    const int* shifts, const double* cell) {
  const int e = THREAD;
  if (e >= n || owners[e] < 0) return;
  const double a = shifts[3 * (size_t)e], b = shifts[3 * (size_t)e + 1], c = shifts[3 * (size_t)e + 2];
  const Atom owner = atoms[owners[e]];
  Atom ghost;
  ghost.x = owner.x + (a * cell[0] + b * cell[3] + c * cell[6]);
  ghost.y = owner.y + (a * cell[1] + b * cell[4] + c * cell[7]);
  ghost.z = owner.z + (a * cell[2] + b * cell[5] + c * cell[8]);
  ghost.owner = rows[e];
  if (e < n_outgoing) outgoing[e] = ghost; else atoms[(size_t)first + e - n_outgoing] = ghost;
}

// Ghosts are of their owners' types: the entries of place_ghosts; -1 for spare room.
extern "C" __global__ void share_types(
    int n, int n_outgoing, int first, const int* types, const int* owners, int* outgoing, int* all) {
  const int e = THREAD;
  if (e >= n) return;
  const int type = owners[e] < 0 ? -1 : types[owners[e]];
  if (e < n_outgoing) outgoing[e] = type; else all[(size_t)first + e - n_outgoing] = type;
}

// Adds the forces on ghosts that other processes have computed to their owners; integers, so that the
// order does not matter.
extern "C" __global__ void add_returned(int n, const int* owners, const int64* returned, int64* forces) {
  const int e = THREAD;
  if (e >= n || owners[e] < 0) return;
  for (int k = 0; k < 3; k++)
    atomicAdd((uint64*)(forces + 4 * (size_t)owners[e] + k), (uint64)returned[4 * (size_t)e + k]);
}

// ---------------------------------------------------------------- neighbour list

// Number of each atom's bin, ordered so that the bins of one column (x, y) and type are contiguous
// along z: ((x ny + y) n_types + type) nz + z.  Atoms of negative type come last.
extern "C" __global__ void bin_atoms(
    int n, const Atom* atoms, const int* types, const double* low, const double* inverse_size, const int* shape,
    int n_types, int* bins) {
  const int i = THREAD;
  if (i >= n) return;
  const double x[3] = {atoms[i].x, atoms[i].y, atoms[i].z};
  int c[3];
  for (int k = 0; k < 3; k++) {
    const double f = (x[k] - low[k]) * inverse_size[k];
    c[k] = f > 0 ? (f < shape[k] - 1 ? (int)f : shape[k] - 1) : 0;
  }
  const int t = types[i];
  bins[i] = t < 0 ? shape[0] * shape[1] * shape[2] * n_types : ((c[0] * shape[1] + c[1]) * n_types + t) * shape[2] + c[2];
}

// Candidates in the order of bins: position relative to `origin` in single precision, and the atom.
extern "C" __global__ void gather_candidates(
    int n, const Atom* atoms, const int64* order, const double* origin, Vector4<float>* candidates) {
  const int k = THREAD;
  if (k >= n) return;
  const int i = (int)order[k];
  Vector4<float> c = {(float)(atoms[i].x - origin[0]), (float)(atoms[i].y - origin[1]), (float)(atoms[i].z - origin[2]),
                      __int_as_float(i)};
  candidates[k] = c;
}

// Rows of neighbours within sqrt(reach2), sorted by type, and their numbers (n, n_types).  `longest`
// takes the longest row, also where that exceeds `stride` and the rows are incomplete.
extern "C" __global__ void build_rows(
    int n, const Atom* atoms, const int* types, const Vector4<float>* candidates, const int* bin_start,
    const double* low, const double* inverse_size, const int* shape, const double* origin, int n_types, float reach2,
    int stride, int* rows, int* counts, int* longest) {
  const int lane = threadIdx.x & 31, i = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (i >= n) return;
  const double x[3] = {atoms[i].x, atoms[i].y, atoms[i].z};
  const float px = (float)(x[0] - origin[0]), py = (float)(x[1] - origin[1]), pz = (float)(x[2] - origin[2]);
  int from[3], to[3], found = 0;
  for (int k = 0; k < 3; k++) {
    const double f = (x[k] - low[k]) * inverse_size[k];
    const int c = f > 0 ? (f < shape[k] - 1 ? (int)f : shape[k] - 1) : 0;
    from[k] = max(c - 2, 0), to[k] = min(c + 2, shape[k] - 1);
  }
  const unsigned before = (1u << lane) - 1u;
  const bool ignored = types[i] < 0;
  for (int t = 0; t < n_types; t++) {
    const int begin = found;
    for (int a = from[0]; a <= to[0] && !ignored; a++)
      for (int b = from[1]; b <= to[1]; b++) {
        const int bin = ((a * shape[1] + b) * n_types + t) * shape[2];
        const int first = bin_start[bin + from[2]], last = bin_start[bin + to[2] + 1];
        for (int k = first; k < last; k += 32) {
          bool inside = false;
          int j = 0;
          if (k + lane < last) {
            const Vector4<float> c = candidates[k + lane];
            const float dx = c.x - px, dy = c.y - py, dz = c.z - pz;
            j = __float_as_int(c.w);
            inside = dx * dx + dy * dy + dz * dz < reach2 && j != i;
          }
          const unsigned lanes = __ballot_sync(ALL_LANES, inside);
          const int place = found + __popc(lanes & before);
          if (inside && place < stride) rows[(size_t)i * stride + place] = j;
          found += __popc(lanes);
        }
      }
    if (lane == 0) counts[(size_t)i * n_types + t] = found - begin;
  }
  if (lane == 0 && found > 0) atomicMax(longest, found);
}

// Rows of neighbours and their numbers (n, n_types) from a list in compressed rows, sorted by type.
extern "C" __global__ void rows_of_list(
    int n, const int64* first, const int* count, const int* indices, const int* types, int n_types, int stride,
    int* rows, int* counts) {
  const int lane = threadIdx.x & 31, i = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (i >= n) return;
  for (int t = 0; t < n_types; t++) {
    int found = 0;
    for (int k = lane; k < count[i]; k += 32) {
      const int j = indices[first[i] + k];
      rows[(size_t)i * stride + k] = j;
      found += types[j] == t;
    }
    found = warp_sum(found);
    if (lane == 0) counts[(size_t)i * n_types + t] = found;
  }
}

// Sets flags[0] if an atom has moved further than sqrt(limit2) (Å^2) from where the list was built, or
// its position is not a number; flags[1] likewise for near2.
extern "C" __global__ void check_motion(
    int n, const Atom* atoms, const Atom* reference, double limit2, double near2, int* flags) {
  const int i = THREAD;
  if (i >= n) return;
  const double dx = atoms[i].x - reference[i].x, dy = atoms[i].y - reference[i].y, dz = atoms[i].z - reference[i].z;
  const double distance2 = dx * dx + dy * dy + dz * dz;
  if (!(distance2 <= near2)) flags[1] = 1;
  if (!(distance2 <= limit2)) flags[0] = 1;
}

// ---------------------------------------------------------------- integration

// v += a time, then x += v drift_time (ps).
extern "C" __global__ void kick_and_drift(
    int n, Atom* atoms, Motion* motions, const int64* forces, double kick_time, double drift_time) {
  const int i = THREAD;
  if (i >= n) return;
  Motion v = motions[i];
  if (kick_time != 0.0) {
    const double factor = kick_time * v.inverse_mass;
    v.x += factor * from_fixed(forces[4 * (size_t)i]);
    v.y += factor * from_fixed(forces[4 * (size_t)i + 1]);
    v.z += factor * from_fixed(forces[4 * (size_t)i + 2]);
    motions[i] = v;
  }
  if (drift_time != 0.0) {
    atoms[i].x += drift_time * v.x;
    atoms[i].y += drift_time * v.y;
    atoms[i].z += drift_time * v.z;
  }
}

// v <- factor v + shift (Å/ps).
extern "C" __global__ void scale_velocities(int n, Motion* motions, double factor, double sx, double sy, double sz) {
  const int i = THREAD;
  if (i >= n) return;
  motions[i].x = factor * motions[i].x + sx;
  motions[i].y = factor * motions[i].y + sy;
  motions[i].z = factor * motions[i].z + sz;
}

// v <- v M and, in transform_positions, x <- x M, for row vectors; M (3, 3) row by row.
extern "C" __global__ void transform_velocities(
    int n, Motion* motions, double xx, double xy, double xz, double yx, double yy, double yz, double zx, double zy,
    double zz) {
  const int i = THREAD;
  if (i >= n) return;
  const Motion v = motions[i];
  motions[i].x = v.x * xx + v.y * yx + v.z * zx;
  motions[i].y = v.x * xy + v.y * yy + v.z * zy;
  motions[i].z = v.x * xz + v.y * yz + v.z * zz;
}

extern "C" __global__ void transform_positions(
    int n, Atom* atoms, double xx, double xy, double xz, double yx, double yy, double yz, double zx, double zy,
    double zz) {
  const int i = THREAD;
  if (i >= n) return;
  const Atom a = atoms[i];
  atoms[i].x = a.x * xx + a.y * yx + a.z * zx;
  atoms[i].y = a.x * xy + a.y * yy + a.z * zy;
  atoms[i].z = a.x * xz + a.y * yz + a.z * zz;
}

__device__ __forceinline__ void philox_round(unsigned* c, unsigned k0, unsigned k1) {
  const uint64 p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
  const unsigned n0 = (unsigned)(p1 >> 32) ^ c[1] ^ k0, n2 = (unsigned)(p0 >> 32) ^ c[3] ^ k1;
  c[1] = (unsigned)p1, c[3] = (unsigned)p0, c[0] = n0, c[2] = n2;
}

// Three standard normal numbers, those of dpmd.kernels.random: Philox-4x32-10 of seed, step, stream, atom id.
__device__ __forceinline__ void standard_normals(int64 atom, int64 seed, int64 step, int stream, double* noise) {
  const uint64 id = (uint64)atom, s = (uint64)step;
  unsigned c[4] = {(unsigned)id, (unsigned)(id >> 32), (unsigned)s, (unsigned)((s >> 32) ^ ((uint64)stream << 24))};
  unsigned k0 = (unsigned)seed, k1 = (unsigned)((uint64)seed >> 32);
  for (int round = 0; round < 10; round++) {
    philox_round(c, k0, k1);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  const double unit = 1.0 / 4294967296.0, pi = 3.14159265358979323846;
  double r = sqrt(-2.0 * log((c[0] + 0.5) * unit)), angle = 2.0 * pi * (c[1] + 0.5) * unit;
  noise[0] = r * cos(angle), noise[1] = r * sin(angle);
  r = sqrt(-2.0 * log((c[2] + 0.5) * unit));
  noise[2] = r * cos(2.0 * pi * (c[3] + 0.5) * unit);
}

// v <- decay v + sqrt((1 - decay^2) energy / m) noise, energy = k T (eV).
extern "C" __global__ void ornstein_uhlenbeck(
    int n, Motion* motions, const int64* ids, int64 seed, int64 step, int stream, double decay, double energy) {
  const int i = THREAD;
  if (i >= n) return;
  double noise[3];
  standard_normals(ids[i], seed, step, stream, noise);
  const double width = sqrt((1.0 - decay * decay) * energy * motions[i].inverse_mass);
  motions[i].x = decay * motions[i].x + width * noise[0];
  motions[i].y = decay * motions[i].y + width * noise[1];
  motions[i].z = decay * motions[i].z + width * noise[2];
}

// F += sqrt(strength m) noise - friction m v; these forces (n, 3), eV/A, into added.
extern "C" __global__ void add_langevin_forces(
    int n, const Motion* motions, const int64* ids, int64* forces, double* added, int64 seed, int64 step, int stream,
    double friction, double strength) {
  const int i = THREAD;
  if (i >= n) return;
  const double mass = 1 / motions[i].inverse_mass, width = sqrt(strength * mass);
  const double v[3] = {motions[i].x, motions[i].y, motions[i].z};
  double noise[3];
  standard_normals(ids[i], seed, step, stream, noise);
  for (int k = 0; k < 3; k++) {
    const double f = width * noise[k] - friction * mass * v[k];
    forces[4 * (size_t)i + k] += to_fixed(f);
    added[3 * (size_t)i + k] = f;
  }
}

// ---------------------------------------------------------------- sums
// One partial sum per warp over every n_warps-th run of 32 atoms, always in the same order; the host
// adds up the partial sums.

// Components xx yy zz yz xz xy of m v v (eV) into partial (n_warps, 6).
extern "C" __global__ void sum_kinetic(int n, int n_warps, const Motion* motions, double* partial) {
  const int lane = threadIdx.x & 31, warp = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (warp >= n_warps) return;
  double sum[6] = {0, 0, 0, 0, 0, 0};
  for (int i = warp * 32 + lane; i < n; i += 32 * n_warps) {
    const Motion v = motions[i];
    const double x = v.x / v.inverse_mass, y = v.y / v.inverse_mass, z = v.z / v.inverse_mass;
    sum[0] += x * v.x, sum[1] += y * v.y, sum[2] += z * v.z;
    sum[3] += y * v.z, sum[4] += x * v.z, sum[5] += x * v.y;
  }
  for (int c = 0; c < 6; c++) {
    const double total = warp_sum(sum[c]);
    if (lane == 0) partial[6 * warp + c] = total;
  }
}

// Sum of F v (eV/ps) for forces (n, 3), eV/A, into partial.
extern "C" __global__ void sum_power(int n, int n_warps, const Motion* motions, const double* forces, double* partial) {
  const int lane = threadIdx.x & 31, warp = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (warp >= n_warps) return;
  double power = 0;
  for (int i = warp * 32 + lane; i < n; i += 32 * n_warps) {
    const double* f = forces + 3 * (size_t)i;
    power += f[0] * motions[i].x + f[1] * motions[i].y + f[2] * motions[i].z;
  }
  power = warp_sum(power);
  if (lane == 0) partial[warp] = power;
}

// Sums of the columns of values (n, columns) into partial (n_warps, columns).
extern "C" __global__ void sum_columns(int n, int n_warps, int columns, const double* values, double* partial) {
  const int lane = threadIdx.x & 31, warp = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (warp >= n_warps) return;
  for (int c = 0; c < columns; c++) {
    double sum = 0;
    for (int i = warp * 32 + lane; i < n; i += 32 * n_warps) sum += values[(size_t)i * columns + c];
    sum = warp_sum(sum);
    if (lane == 0) partial[warp * columns + c] = sum;
  }
}

// Largest |force|^2 and |velocity|^2 per warp (n_warps, 2); infinity where one is not a number.
extern "C" __global__ void largest_norms(int n, int n_warps, const int64* forces, const Motion* motions, double* partial) {
  const int lane = threadIdx.x & 31, warp = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (warp >= n_warps) return;
  double force2 = 0, speed2 = 0;
  for (int i = warp * 32 + lane; i < n; i += 32 * n_warps) {
    double f2 = 0;
    for (int k = 0; k < 3; k++) {
      const double f = from_fixed(forces[4 * (size_t)i + k]);
      f2 += f * f;
    }
    double v2 = motions[i].x * motions[i].x + motions[i].y * motions[i].y + motions[i].z * motions[i].z;
    if (!(v2 < 1e300)) v2 = 1e300;
    force2 = f2 > force2 ? f2 : force2;
    speed2 = v2 > speed2 ? v2 : speed2;
  }
  for (int offset = 16; offset; offset >>= 1) {
    const double f = __shfl_xor_sync(ALL_LANES, force2, offset), v = __shfl_xor_sync(ALL_LANES, speed2, offset);
    force2 = f > force2 ? f : force2;
    speed2 = v > speed2 ? v : speed2;
  }
  if (lane == 0) partial[2 * warp] = force2, partial[2 * warp + 1] = speed2;
}
