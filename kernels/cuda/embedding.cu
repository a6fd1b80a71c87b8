// Environment, tabulated embedding and descriptor, forwards and backwards: one warp per centre.
//
// Formulas as in dpmd.kernels.reference.  The neighbours of a centre are walked once forwards, adding
// up T = sum_j R_j (x) G(s_j) (4 x M), and once backwards, where the table row is evaluated again.
//
// Shells: neighbours nearer than the split radius of their pair of types use the full table row (M
// outputs, one neighbour at a time over all 32 lanes: NEAR); farther ones a basis of N_BASIS functions
// U (eight lanes per neighbour, four neighbours at a time: FAR), T = T_near + sum_b (sum_j R_j (x) U(s_j)) V_b.
//
// A table row lies in memory as each lane reads it: for output m = lane + LANES p the coefficients
// c0..c3 at [p][lane], then c4, c5 at [p][lane], so that every load is 16 (or 8) bytes per lane and
// contiguous over lanes.
//
// Cost per centre, n neighbours of which f far, B = N_BASIS, M outputs, A axis columns, T types:
//   forwards   multiply-adds  9 (n - f) M + 9 f B + 4 T B M + 4 A M
//   backwards  multiply-adds  19 (n - f) M + 19 f B + 8 T B M + 8 A M
//   from L1    each way       24 bytes x ((n - f) M + f B), the bound for full tables: 2.4 kB a neighbour
//   from L2    each way       36 bytes per entry of the list (4 the index, 32 the position)
//
// Macros: N_TYPES, N_EMBEDDING = M, N_AXIS = A, N_BASIS = B (0: no far shell; else a multiple of 8),
// EXACT (1: table rows are private to a pair, see exact_rows), SHARED_SELECTION, GEOMETRY (float or double: of
// distances, the switching function and places in tables), and those of common.cuh.

#ifndef N_TYPES
#define N_TYPES 2
#endif
#ifndef N_EMBEDDING
#define N_EMBEDDING 100
#endif
#ifndef N_AXIS
#define N_AXIS 16
#endif
#ifndef N_BASIS
#define N_BASIS 0
#endif
#ifndef EXACT
#define EXACT 0
#endif
#ifndef SHARED_SELECTION
#define SHARED_SELECTION 0
#endif
#ifndef GEOMETRY
#define GEOMETRY REAL
#endif
typedef GEOMETRY geometry;

#ifndef UNROLL  // neighbours whose table rows are loaded at the same time, forwards
#define UNROLL 2
#endif
#ifndef FORWARD_BLOCKS  // blocks per multiprocessor that registers are spared for
#define FORWARD_BLOCKS (sizeof(real) == 4 ? 6 : 3)
#endif
#ifndef BACKWARD_BLOCKS
#define BACKWARD_BLOCKS (sizeof(real) == 4 ? 4 : 2)
#endif

constexpr int loads_in_flight = UNROLL;

#define NEAR_LANES 32
#define NEAR_PER ((N_EMBEDDING + 31) / 32)
#define FAR_LANES 8
#define FAR_PER (N_BASIS ? N_BASIS / 8 : 1)
#define M_EVEN ((N_EMBEDDING + 1) / 2 * 2)

enum PairRule { INCLUDED, SKIPPED, MASKED, REMOVED };
// columns of pair_numbers, pair_integers (8 per pair), centre_numbers (4 per type), environment (8)
enum { LOWER, UPPER, MAXIMUM, INVERSE_FINE, INVERSE_COARSE, SPLIT2, FAR_LOWER, FAR_INVERSE_STEP };
enum { RULE, SEL, TABLE, N_FINE, N_COARSE, FAR_TABLE, FAR_ROWS, NETWORK };
enum { MEAN, INVERSE_STD, INVERSE_ANGULAR };
enum { START, INVERSE_WIDTH, PROTECTION, CUTOFF2, INVERSE_COUNT, CHECKED2 };
// columns of counters: centres with too many neighbours; float bits of the largest 1 / r^2 of pairs nearer than
// the root of CHECKED2
enum { OVERFLOWED, NEAREST };

// ---------------------------------------------------------------- one pair

// With h = r_ij / r, weight w(r), protection p: radial = w / (r + p), angle = w r / (r + p)^2 and
// their derivatives; input = (radial - mean) / std is what the table is read at.
//
// Where the networks are steep or the switching function is narrow, the rounding of a distance to single precision
// would show: so r^2 and what follows from it are computed in the type `geometry`.
struct Pair { real inverse_r, radial_slope, angle, angle_slope; geometry input; };

// 1 / sqrt(x) to about 1e-14 from single precision by a step of Newton's, where the rest is in single precision.
__device__ __forceinline__ double inverse_root_for(double x, float) {
  const double guess = (double)inverse_root((float)x);
  return guess * (1.5 - 0.5 * x * guess * guess);
}
__device__ __forceinline__ double inverse_root_for(double x, double) { return inverse_root(x); }
__device__ __forceinline__ float inverse_root_for(float x, float) { return inverse_root(x); }

__device__ __forceinline__ Pair environment_of(geometry r2, const double* environment, geometry mean, geometry inverse_std) {
  Pair pair;
  const geometry start = geometry(environment[START]), inverse_width = geometry(environment[INVERSE_WIDTH]);
  const geometry protection = geometry(environment[PROTECTION]);
  const geometry inverse_r = inverse_root_for(r2, real(0)), r = r2 * inverse_r;
  geometry u = (r - start) * inverse_width;
  u = u < 0 ? 0 : (u > 1 ? 1 : u);
  const geometry w = u * u * u * (u * (15 - 6 * u) - 10) + 1;
  const real rest = real(u * (1 - u)), w_slope = -30 * rest * rest * real(inverse_width);
  const geometry wide_shifted = protection == 0 ? inverse_r : 1 / (r + protection), wide_radial = w * wide_shifted;
  const real radial = real(wide_radial), inverse_shifted = real(wide_shifted), distance = real(r);
  pair.inverse_r = real(inverse_r);
  pair.radial_slope = (w_slope - radial) * inverse_shifted;
  pair.angle = radial * distance * inverse_shifted;
  pair.angle_slope = (pair.radial_slope * distance + radial - pair.angle) * inverse_shifted;
  pair.input = (wide_radial - mean) * inverse_std;
  return pair;
}

// Row of a table, place in it (0..1 within its step) and d place / d input.
struct Place { int row; real fraction, scale; };

__device__ __forceinline__ Place place_near(geometry x, const geometry* numbers, const int* integers) {
  Place place;
  const int n_fine = integers[N_FINE], n_coarse = integers[N_COARSE];
  if (x < numbers[LOWER]) {
    place = {n_fine + n_coarse, real(x - numbers[LOWER]), 1};
  } else if (x < numbers[UPPER]) {
    geometry z = (x - numbers[LOWER]) * numbers[INVERSE_FINE];
    int row = min((int)z, n_fine - 1);
    place = {row, real(z - row), real(numbers[INVERSE_FINE])};
  } else if (x < numbers[MAXIMUM]) {
    geometry z = (x - numbers[UPPER]) * numbers[INVERSE_COARSE];
    int row = min((int)z, n_coarse - 1);
    place = {n_fine + row, real(z - row), real(numbers[INVERSE_COARSE])};
  } else {
    place = {n_fine + n_coarse + 1, real(x - numbers[MAXIMUM]), 1};
  }
  place.row += integers[TABLE];
  return place;
}

__device__ __forceinline__ Place place_far(geometry x, const geometry* numbers, const int* integers) {
  geometry z = (x - numbers[FAR_LOWER]) * numbers[FAR_INVERSE_STEP];
  int row = max(min((int)z, integers[FAR_ROWS] - 1), 0);
  Place place = {integers[FAR_TABLE] + row, real(z - row), real(numbers[FAR_INVERSE_STEP])};
  return place;
}

// A batch of up to 32 neighbours, as all lanes read it: table row, place in it, and the normalised
// entries (radial, x, y, z) of the environment matrix.
struct Batch { Vector4<real> entries[32]; real fraction[32]; int row[32]; };

// One warp's shared memory.  pending: neighbours that wait for a full batch (dx, dy, dz in Å, owner), and their r^2.
struct Shared {
  union {
    struct { Vector4<real> pending[2][64]; geometry squares[2][64]; Batch batch; } walk;
    real T[4 * M_EVEN];
    Vector4<real> columns[N_EMBEDDING];
    struct { real force[32][4]; int owner[32]; } forces;
  } u;
#if EXACT
  int slot[2][64];
#endif
  Vector4<real> far[N_BASIS ? N_TYPES * N_BASIS : 1];
  Vector4<real> axis[N_AXIS];
  real limit[N_TYPES];
  int found[N_TYPES];
};

// What all lanes of a warp know about their centre.
struct Centre {
  int index, type, lane;
  double x, y, z;
  const int *row, *counts;
  const Atom* atoms;
  const double* environment;
  const geometry *pair_numbers, *statistics;
  const int* pair_integers;
  int first_exact_row;
};

__device__ __forceinline__ void difference(const Centre& c, int j, Vector4<real>* d, geometry* r2) {
  Atom other = c.atoms[j];
  const geometry x = geometry(other.x - c.x), y = geometry(other.y - c.y), z = geometry(other.z - c.z);
  *d = {real(x), real(y), real(z), carry((int)other.owner, real(0))};
  *r2 = x * x + y * y + z * z;
}

// Walk the entries begin..end of the list (one type b), keep those with r^2 < limit2 and hand them to
// `near` or `far` in batches of up to 32 as (entries, slots, number).  Returns how many were kept.
template <class Near, class Far>
__device__ __forceinline__ int walk(const Centre& c, Shared& shared, int begin, int end, real limit2, real split2, Near& near, Far& far) {
  const unsigned before = (1u << c.lane) - 1u;
  int waiting_near = 0, waiting_far = 0, kept = 0;
  int next = begin + c.lane < end ? c.row[begin + c.lane] : -1;
  for (int k = begin;; k += 32) {
    const bool more = k < end;
    if (more) {
      const int j = next;
      next = k + 32 + c.lane < end ? c.row[k + 32 + c.lane] : -1;
      Vector4<real> d = {0, 0, 0, 0};
      geometry square = 0;
      bool inside = false;
      if (j >= 0) {
        difference(c, j, &d, &square);
        inside = real(square) < limit2;
      }
      const bool is_near = !N_BASIS || real(square) < split2;
      const unsigned near_lanes = __ballot_sync(ALL_LANES, inside && is_near);
      if (inside && is_near) {
        int p = waiting_near + __popc(near_lanes & before);
        shared.u.walk.pending[0][p] = d;
        shared.u.walk.squares[0][p] = square;
#if EXACT
        shared.slot[0][p] = k + c.lane;
#endif
      }
      waiting_near += __popc(near_lanes);
      kept += __popc(near_lanes);
#if N_BASIS
      const unsigned far_lanes = __ballot_sync(ALL_LANES, inside && !is_near);
      if (inside && !is_near) {
        int p = waiting_far + __popc(far_lanes & before);
        shared.u.walk.pending[1][p] = d;
        shared.u.walk.squares[1][p] = square;
      }
      waiting_far += __popc(far_lanes);
      kept += __popc(far_lanes);
#endif
      __syncwarp();
    }
    if (waiting_near >= 32 || (!more && waiting_near > 0)) {
      const int n = min(waiting_near, 32);
      waiting_near -= n;
      near(c, shared, waiting_near, n);
    }
#if N_BASIS
    if (waiting_far >= 32 || (!more && waiting_far > 0)) {
      const int n = min(waiting_far, 32);
      waiting_far -= n;
      far(c, shared, waiting_far, n);
    }
#endif
    if (!more && waiting_near == 0 && waiting_far == 0) break;
  }
  return kept;
}

// Where the row of coefficients of neighbour `slot` of the batch begins.
template <int PER, int LANES> __device__ __forceinline__ const real* row_of(const real* table, int row) {
  return table + (size_t)row * (6 * PER * LANES);
}

// ---------------------------------------------------------------- forwards

// Adds R (x) G of a batch to T[column][output of this lane].
template <int LANES, int PER, int OUTPUTS, bool FAR> struct Accumulate {
  const real* table;
  const geometry* numbers;
  const int* integers;
  int* counters;
  real T[4][PER];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
      for (int p = 0; p < PER; p++) T[c][p] = 0;
  }

  __device__ __forceinline__ void operator()(const Centre& c, Shared& shared, int first, int n) {
    Batch& batch = shared.u.walk.batch;
    if (c.lane < n) {
      Vector4<real> d = shared.u.walk.pending[FAR][first + c.lane];
      const geometry square = shared.u.walk.squares[FAR][first + c.lane];
      if (!FAR && square < geometry(c.environment[CHECKED2]))
        atomicMax(counters + NEAREST, __float_as_int(1 / (float)square));
      Pair pair = environment_of(square, c.environment, c.statistics[MEAN], c.statistics[INVERSE_STD]);
      Place place = FAR ? place_far(pair.input, numbers, integers) : place_near(pair.input, numbers, integers);
#if EXACT
      place = {c.first_exact_row + shared.slot[0][first + c.lane], 0, 1};
#endif
      real f = pair.angle * pair.inverse_r * real(c.statistics[INVERSE_ANGULAR]);
      batch.entries[c.lane] = {real(pair.input), f * d.x, f * d.y, f * d.z};
      batch.fraction[c.lane] = place.fraction;
      batch.row[c.lane] = place.row;
    }
    __syncwarp();
    const int lane = c.lane % LANES;
#pragma unroll loads_in_flight
    for (int s = c.lane / LANES; s < n; s += 32 / LANES) {
      const real t = batch.fraction[s];
      const Vector4<real> R = batch.entries[s];
      const real* row = row_of<PER, LANES>(table, batch.row[s]);
#pragma unroll
      for (int p = 0; p < PER; p++) {
        if (OUTPUTS == PER * LANES || lane + LANES * p < OUTPUTS) {
          const Vector4<real> a = ((const Vector4<real>*)row)[p * LANES + lane];
          const Vector2<real> b = ((const Vector2<real>*)(row + 4 * PER * LANES))[p * LANES + lane];
          const real g = a.x + t * (a.y + t * (a.z + t * (a.w + t * (b.x + t * b.y))));
          T[0][p] += R.x * g;
          T[1][p] += R.y * g;
          T[2][p] += R.z * g;
          T[3][p] += R.w * g;
        }
      }
    }
    __syncwarp();
  }
};

// The largest bound such that at most `wanted` entries begin..end of the list have r^2 below it and
// below `bound`.  Bisection over the bits of the number; only for centres with too many neighbours.
__device__ inline real nearest_bound(const Centre& c, int begin, int end, int wanted, real bound) {
  int64 low = 0, high = sizeof(real) == 4 ? (int64)__float_as_int((float)bound) : __double_as_longlong((double)bound);
  while (low < high) {
    int64 middle = low + (high - low + 1) / 2;
    real trial = sizeof(real) == 4 ? (real)__int_as_float((int)middle) : (real)__longlong_as_double(middle);
    int count = 0;
    for (int k = begin; k < end; k += 32) {
      Vector4<real> d;
      geometry r2 = 0;
      if (k + c.lane < end) difference(c, c.row[k + c.lane], &d, &r2);
      count += __popc(__ballot_sync(ALL_LANES, k + c.lane < end && real(r2) < trial));
    }
    if (count <= wanted) low = middle;
    else high = middle - 1;
  }
  return sizeof(real) == 4 ? (real)__int_as_float((int)low) : (real)__longlong_as_double(low);
}

// Bounds on r^2 that keep the nearest `sel` neighbours of each type (and before that, with
// SHARED_SELECTION, the nearest sum(sel) of all).  Of neighbours exactly as far as the first one
// that is dropped, all are dropped.
__device__ inline void select_nearest(const Centre& c, Shared& shared, real cutoff2) {
  int total = 0, slots = 0;
  for (int b = 0; b < N_TYPES; b++) {
    total += c.counts[b];
    slots += c.pair_integers[8 * b + SEL];
  }
  real all = SHARED_SELECTION ? nearest_bound(c, 0, total, slots, cutoff2) : cutoff2;
  int begin = 0;
  for (int b = 0; b < N_TYPES; b++) {
    real bound = nearest_bound(c, begin, begin + c.counts[b], c.pair_integers[8 * b + SEL], all);
    __syncwarp();
    if (c.lane == 0) shared.limit[b] = bound;
    begin += c.counts[b];
  }
  __syncwarp();
}

#define CENTRE_ARGUMENTS                                                                                            \
  int n, const int *__restrict__ centres, int type, const Atom *__restrict__ atoms, const int *__restrict__ rows,   \
      const int *__restrict__ counts, int stride, const double *__restrict__ environment,                           \
      const geometry *__restrict__ centre_numbers, const geometry *__restrict__ pair_numbers,                       \
      const int *__restrict__ pair_integers, const real *__restrict__ near_table, const real *__restrict__ far_table

__device__ __forceinline__ Centre make_centre(int q, int lane, CENTRE_ARGUMENTS) {
  Centre c;
  c.index = centres[q];
  c.type = type;
  c.lane = lane;
  Atom here = atoms[c.index];
  c.x = here.x, c.y = here.y, c.z = here.z;
  c.row = rows + (size_t)c.index * stride;
  c.counts = counts + c.index * N_TYPES;
  c.atoms = atoms;
  c.environment = environment;
  c.statistics = centre_numbers + 4 * type;
  c.pair_numbers = pair_numbers + 8 * N_TYPES * type;
  c.pair_integers = pair_integers + 8 * N_TYPES * type;
  c.first_exact_row = q * stride;
  return c;
}
#define CENTRE_VALUES                                                                                               \
  n, centres, type, atoms, rows, counts, stride, environment, centre_numbers, pair_numbers, pair_integers,          \
      near_table, far_table

// T and descriptor D of the centres centres[0..n), all of one type.
//
// padding (N_TYPES, M): what an empty slot adds to T_0; expansion (N_TYPES, N_BASIS, M): V_b.
// Writes T (n, 4, M), limits (n, N_TYPES) and the rows of D (element a M' + m, M' = M rounded up to
// even) in the form that the matrix product takes, d_stride elements each part; for HALF less reference (d_stride).
extern "C" __global__ void LAUNCH_BOUNDS(FORWARD_BLOCKS) embedding_forward(
    CENTRE_ARGUMENTS, const real* __restrict__ padding, const real* __restrict__ expansion, real* __restrict__ T_out,
    real* __restrict__ limits, const real* __restrict__ reference, input_t* __restrict__ D, int d_stride,
    int* __restrict__ counters) {
  __shared__ Shared shared_of_warp[WARPS];
  const int lane = threadIdx.x & 31, q = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (q >= n) return;
  Shared& shared = shared_of_warp[threadIdx.x >> 5];
  const Centre c = make_centre(q, lane, CENTRE_VALUES);
  const real cutoff2 = real(environment[CUTOFF2]);
  Accumulate<NEAR_LANES, NEAR_PER, N_EMBEDDING, false> near;
  Accumulate<FAR_LANES, FAR_PER, N_BASIS, true> far;
  near.table = near_table;
  far.table = far_table;
  near.counters = far.counters = counters;
  for (int b = lane; b < N_TYPES; b += 32) shared.limit[b] = cutoff2;
  __syncwarp();

#pragma unroll 1
  for (int attempt = 0; attempt < 2; attempt++) {  // again only if there were more neighbours than slots
    near.clear();
    bool too_many = false;
    int begin = 0, kept_of_all = 0, slots = 0;
#pragma unroll 1
    for (int b = 0; b < N_TYPES; b++) {
      const int end = begin + c.counts[b];
      near.numbers = far.numbers = c.pair_numbers + 8 * b;
      near.integers = far.integers = c.pair_integers + 8 * b;
      const int rule = near.integers[RULE], sel = near.integers[SEL];
      const real split2 = real(near.numbers[SPLIT2]);
      far.clear();
      int kept = 0;
      if (rule == INCLUDED) {
        kept = walk(c, shared, begin, end, shared.limit[b], split2, near, far);
      } else {
        for (int k = begin; k < end; k += 32) {
          Vector4<real> d;
          geometry r2 = 0;
          if (k + lane < end) difference(c, c.row[k + lane], &d, &r2);
          kept += __popc(__ballot_sync(ALL_LANES, k + lane < end && real(r2) < shared.limit[b]));
        }
      }
#if N_BASIS
#pragma unroll
      for (int p = 0; p < FAR_PER; p++) {
#pragma unroll
        for (int column = 0; column < 4; column++) {
          real v = far.T[column][p];
          v += __shfl_xor_sync(ALL_LANES, v, 8);
          far.T[column][p] = v + __shfl_xor_sync(ALL_LANES, v, 16);
        }
        if (lane < FAR_LANES)
          shared.far[b * N_BASIS + lane + FAR_LANES * p] = {far.T[0][p], far.T[1][p], far.T[2][p], far.T[3][p]};
      }
#endif
      const real empty = rule == SKIPPED ? 0 : (rule == REMOVED ? sel : sel - kept);
#pragma unroll
      for (int p = 0; p < NEAR_PER; p++)
        if (lane + 32 * p < N_EMBEDDING) near.T[0][p] += empty * padding[b * N_EMBEDDING + lane + 32 * p];
      too_many = too_many || (sel > 0 && kept > sel);
      kept_of_all += kept;
      slots += sel;
      begin = end;
    }
    too_many = too_many || (SHARED_SELECTION && kept_of_all > slots);
    if (!too_many || attempt == 1) break;
    if (lane == 0) atomicAdd(counters + OVERFLOWED, 1);
    select_nearest(c, shared, cutoff2);
  }
  for (int b = lane; b < N_TYPES; b += 32) limits[q * N_TYPES + b] = shared.limit[b];
  __syncwarp();

#if N_BASIS
#pragma unroll 4
  for (int k = 0; k < N_TYPES * N_BASIS; k++) {
    const Vector4<real> M = shared.far[k];
#pragma unroll
    for (int p = 0; p < NEAR_PER; p++) {
      if (lane + 32 * p < N_EMBEDDING) {
        const real v = expansion[k * N_EMBEDDING + lane + 32 * p];
        near.T[0][p] += M.x * v;
        near.T[1][p] += M.y * v;
        near.T[2][p] += M.z * v;
        near.T[3][p] += M.w * v;
      }
    }
  }
#endif
  const real inverse_count = real(environment[INVERSE_COUNT]);
#pragma unroll
  for (int column = 0; column < 4; column++) {
#pragma unroll
    for (int p = 0; p < NEAR_PER; p++) {
      const int m = lane + 32 * p;
      const real value = near.T[column][p] * inverse_count;
      if (m < N_EMBEDDING) T_out[((size_t)q * 4 + column) * N_EMBEDDING + m] = value;
      if (m < M_EVEN) shared.u.T[column * M_EVEN + m] = m < N_EMBEDDING ? value : real(0);
      if (m < N_AXIS) ((real*)&shared.axis[m])[column] = value;
    }
  }
  __syncwarp();
  const int parts = INPUT_KIND == SPLIT ? 2 : 1;
  input_t* row = D + (size_t)q * d_stride * parts;
  for (int pair = lane; pair < M_EVEN / 2; pair += 32) {
    Vector2<real> T[4];
#pragma unroll
    for (int column = 0; column < 4; column++) T[column] = *(Vector2<real>*)(shared.u.T + column * M_EVEN + 2 * pair);
#pragma unroll
    for (int a = 0; a < N_AXIS; a++) {
      const Vector4<real> x = shared.axis[a];
      Vector2<real> value = {x.x * T[0].x + x.y * T[1].x + x.z * T[2].x + x.w * T[3].x,
                             x.x * T[0].y + x.y * T[1].y + x.z * T[2].y + x.w * T[3].y};
      if (INPUT_KIND == HALF) {
        const Vector2<real> typical = *(const Vector2<real>*)(reference + a * M_EVEN + 2 * pair);
        value.x -= typical.x, value.y -= typical.y;
      }
      put_input(row, a * M_EVEN + 2 * pair, d_stride, parts, value.x, value.y);
    }
  }
}

// ---------------------------------------------------------------- backwards

// Gradients and forces of a batch: dE/d(entries) from dE/dT and the table, dE/dr_ij by the chain rule
//   dE/dr_ij = [g_0 s' + (g . h)(v' - v / r)] h + (v / r) g,   h = r_ij / r, s radial, v angle,
// added to the centre, to the neighbour with the opposite sign, and to the virial W = -sum dE/dr_ij (x) r_ij.
struct Sums {
  real force[3], virial[9];  // of this lane
  int64 *forces, *atomic_virials;
};

template <int LANES, int PER, int OUTPUTS, bool FAR, bool VIRIAL> struct Gradient {
  const real* table;
  const geometry* numbers;
  const int* integers;
  real dT[4][PER];
  Sums& sums;

  __device__ __forceinline__ Gradient(const real* table, Sums& sums) : table(table), sums(sums) {}

  // Each lane keeps one half of the numbers v[0..2 KEPT) and gets the partner's share of it.
  template <int KEPT> __device__ __forceinline__ static void halve(real* v, int lane, int offset) {
    const bool upper = lane & offset;
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      const real keep = upper ? v[k + KEPT] : v[k], send = upper ? v[k] : v[k + KEPT];
      v[k] = keep + __shfl_xor_sync(ALL_LANES, send, offset);
    }
  }

  // Sums over the outputs of 8 neighbours per group of lanes; lane i LANES / 8 of a group gets number i.
  __device__ __forceinline__ static void reduce(real* v, int lane) {
    halve<20>(v, lane, LANES / 2);
    halve<10>(v, lane, LANES / 4);
    halve<5>(v, lane, LANES / 8);
#pragma unroll
    for (int k = 0; k < 5; k++) {
      if (LANES == 32) v[k] += __shfl_xor_sync(ALL_LANES, v[k], 2);
      if (LANES == 32) v[k] += __shfl_xor_sync(ALL_LANES, v[k], 1);
    }
  }

  __device__ __forceinline__ void operator()(const Centre& c, Shared& shared, int first, int n) {
    Batch& batch = shared.u.walk.batch;
    const int lane = c.lane % LANES, group = c.lane / LANES, groups = 32 / LANES;
    const bool mine = c.lane < n;
    const real inverse_std = real(c.statistics[INVERSE_STD]), inverse_angular = real(c.statistics[INVERSE_ANGULAR]);
    Vector4<real> d = {1, 0, 0, 0};
    geometry square = 1;
    if (mine) d = shared.u.walk.pending[FAR][first + c.lane], square = shared.u.walk.squares[FAR][first + c.lane];
    const Pair pair = environment_of(square, c.environment, c.statistics[MEAN], c.statistics[INVERSE_STD]);
    Place place = FAR ? place_far(pair.input, numbers, integers) : place_near(pair.input, numbers, integers);
#if EXACT
    place = {c.first_exact_row + (mine ? shared.slot[0][first + c.lane] : 0), 0, 1};
#endif
    const real f = pair.angle * pair.inverse_r * inverse_angular;
    if (mine) {
      batch.entries[c.lane] = {real(pair.input), f * d.x, f * d.y, f * d.z};
      batch.fraction[c.lane] = place.fraction;
      batch.row[c.lane] = place.row;
    }
    __syncwarp();
    real g0 = 0, g1 = 0, g2 = 0, g3 = 0, along_table = 0;
#pragma unroll 1
    for (int base = 0; base < n; base += 8 * groups) {
      real v[40];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int s = base + i * groups + group;
        real v0 = 0, v1 = 0, v2 = 0, v3 = 0, v4 = 0;
        if (s < n) {
          const real t = batch.fraction[s];
          const Vector4<real> R = batch.entries[s];
          const real* row = row_of<PER, LANES>(table, batch.row[s]);
#pragma unroll
          for (int p = 0; p < PER; p++) {
            if (OUTPUTS == PER * LANES || lane + LANES * p < OUTPUTS) {
              const Vector4<real> a = ((const Vector4<real>*)row)[p * LANES + lane];
              const Vector2<real> b = ((const Vector2<real>*)(row + 4 * PER * LANES))[p * LANES + lane];
              real g = b.y, slope = b.y;  // Horner for the polynomial and its derivative together
              g = g * t + b.x;
              slope = slope * t + g;
              g = g * t + a.w;
              slope = slope * t + g;
              g = g * t + a.z;
              slope = slope * t + g;
              g = g * t + a.y;
              slope = slope * t + g;
              g = g * t + a.x;
#if EXACT
              slope = a.y;
#endif
              v0 += dT[0][p] * g;
              v1 += dT[1][p] * g;
              v2 += dT[2][p] * g;
              v3 += dT[3][p] * g;
              v4 += (R.x * dT[0][p] + R.y * dT[1][p] + R.z * dT[2][p] + R.w * dT[3][p]) * slope;
            }
          }
        }
        v[5 * i] = v0, v[5 * i + 1] = v1, v[5 * i + 2] = v2, v[5 * i + 3] = v3, v[5 * i + 4] = v4;
      }
      reduce(v, c.lane);
      const int mine_of_base = c.lane - base;
      const int source = ((mine_of_base % groups) * LANES + (mine_of_base / groups) * (LANES / 8)) & 31;
      const bool here = mine_of_base >= 0 && mine_of_base < 8 * groups;
      const real w0 = __shfl_sync(ALL_LANES, v[0], source), w1 = __shfl_sync(ALL_LANES, v[1], source);
      const real w2 = __shfl_sync(ALL_LANES, v[2], source), w3 = __shfl_sync(ALL_LANES, v[3], source);
      const real w4 = __shfl_sync(ALL_LANES, v[4], source);
      if (here) g0 = w0, g1 = w1, g2 = w2, g3 = w3, along_table = w4;
    }
    g0 = (g0 + along_table * place.scale) * inverse_std;
    g1 *= inverse_angular, g2 *= inverse_angular, g3 *= inverse_angular;
    const real hx = d.x * pair.inverse_r, hy = d.y * pair.inverse_r, hz = d.z * pair.inverse_r;
    const real transverse = pair.angle * pair.inverse_r;
    const real along = g0 * pair.radial_slope + (g1 * hx + g2 * hy + g3 * hz) * (pair.angle_slope - transverse);
    real gx = along * hx + transverse * g1, gy = along * hy + transverse * g2, gz = along * hz + transverse * g3;
    if (!mine) gx = gy = gz = 0;
    sums.force[0] += gx, sums.force[1] += gy, sums.force[2] += gz;
    if (VIRIAL) {
      real* virial = sums.virial;
      virial[0] += gx * d.x, virial[1] += gx * d.y, virial[2] += gx * d.z;
      virial[3] += gy * d.x, virial[4] += gy * d.y, virial[5] += gy * d.z;
      virial[6] += gz * d.x, virial[7] += gz * d.y, virial[8] += gz * d.z;
      if (sums.atomic_virials && mine) {
        int64* row = sums.atomic_virials + 9 * (size_t)carried(d.w);
        add_fixed(row, -gx * d.x), add_fixed(row + 1, -gx * d.y), add_fixed(row + 2, -gx * d.z);
        add_fixed(row + 3, -gy * d.x), add_fixed(row + 4, -gy * d.y), add_fixed(row + 5, -gy * d.z);
        add_fixed(row + 6, -gz * d.x), add_fixed(row + 7, -gz * d.y), add_fixed(row + 8, -gz * d.z);
      }
    }
    // neighbours' forces: consecutive lanes add the components of one atom, which the memory system
    // takes as one request
    __syncwarp();
    batch.entries[c.lane] = {gx, gy, gz, d.w};
    __syncwarp();
    for (int k = c.lane; k < 4 * n; k += 32) {
      const real* entry = (const real*)&batch.entries[k >> 2];
      if ((k & 3) < 3) add_fixed(sums.forces + 4 * (size_t)carried(entry[3]) + (k & 3), -(double)entry[k & 3]);
    }
    __syncwarp();
  }
};

// Forces and, with VIRIAL, virials of the centres from dE/dD (n, d_stride), T and limits of the forward kernel;
// for HALF gradient_reference (d_stride) is to be added to each row of dE/dD.
//
// forces (atoms, 4) fixed point, added to; virials (local atoms, 9) eV, written (null without VIRIAL);
// atomic_virials (atoms, 9) fixed point, added to, or null.
#define BACKWARD_ARGUMENTS                                                                                          \
  CENTRE_ARGUMENTS, const real *__restrict__ expansion, const real *__restrict__ T_in,                              \
      const real *__restrict__ limits, const real *__restrict__ gradient_reference, const real *__restrict__ dD,    \
      int d_stride, int64 *__restrict__ forces, double *__restrict__ virials, int64 *__restrict__ atomic_virials

template <bool VIRIAL> __device__ __forceinline__ void backward(Shared* shared_of_warp, BACKWARD_ARGUMENTS) {
  const int lane = threadIdx.x & 31, q = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (q >= n) return;
  Shared& shared = shared_of_warp[threadIdx.x >> 5];
  const Centre c = make_centre(q, lane, CENTRE_VALUES);
  Sums sums = {{0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 0}, forces, atomic_virials};
  Gradient<NEAR_LANES, NEAR_PER, N_EMBEDDING, false, VIRIAL> near(near_table, sums);
  Gradient<FAR_LANES, FAR_PER, N_BASIS, true, VIRIAL> far(far_table, sums);

  // dE/dT[c][m] = sum_a dD[a][m] T[c][a], and for m < A also + sum_k dD[m][k] T[c][k]
  {
    real T[4][NEAR_PER];
#pragma unroll
    for (int column = 0; column < 4; column++) {
#pragma unroll
      for (int p = 0; p < NEAR_PER; p++) {
        const int m = lane + 32 * p;
        T[column][p] = m < N_EMBEDDING ? T_in[((size_t)q * 4 + column) * N_EMBEDDING + m] : real(0);
        near.dT[column][p] = 0;
        if (m < N_AXIS) ((real*)&shared.axis[m])[column] = T[column][p];
      }
    }
    __syncwarp();
    const real* row = dD + (size_t)q * d_stride;
#pragma unroll 2
    for (int a = 0; a < N_AXIS; a++) {
      const Vector4<real> x = shared.axis[a];
      real s[4] = {0, 0, 0, 0};
#pragma unroll
      for (int p = 0; p < NEAR_PER; p++) {
        const int k = a * M_EVEN + lane + 32 * p;
        real g = lane + 32 * p < N_EMBEDDING ? row[k] : real(0);
        if (INPUT_KIND == HALF && lane + 32 * p < N_EMBEDDING) g += gradient_reference[k];
        near.dT[0][p] += x.x * g;
        near.dT[1][p] += x.y * g;
        near.dT[2][p] += x.z * g;
        near.dT[3][p] += x.w * g;
#pragma unroll
        for (int column = 0; column < 4; column++) s[column] += T[column][p] * g;
      }
      // four sums over 32 lanes: halve the numbers twice, then sum over eight lanes
      const bool upper = lane & 16, right = lane & 8;
      real s0 = upper ? s[2] : s[0], s1 = upper ? s[3] : s[1];
      s0 += __shfl_xor_sync(ALL_LANES, upper ? s[0] : s[2], 16);
      s1 += __shfl_xor_sync(ALL_LANES, upper ? s[1] : s[3], 16);
      real sum = (right ? s1 : s0) + __shfl_xor_sync(ALL_LANES, right ? s0 : s1, 8);
      sum += __shfl_xor_sync(ALL_LANES, sum, 4);
      sum += __shfl_xor_sync(ALL_LANES, sum, 2);
      sum += __shfl_xor_sync(ALL_LANES, sum, 1);
      // column = 2 (lane / 16) + (lane / 8) % 2; lane a of the first slot wants all four
      const real t0 = __shfl_sync(ALL_LANES, sum, 0), t1 = __shfl_sync(ALL_LANES, sum, 8);
      const real t2 = __shfl_sync(ALL_LANES, sum, 16), t3 = __shfl_sync(ALL_LANES, sum, 24);
      if (lane == a) near.dT[0][0] += t0, near.dT[1][0] += t1, near.dT[2][0] += t2, near.dT[3][0] += t3;  // A <= 32
    }
    const real inverse_count = real(environment[INVERSE_COUNT]);
#pragma unroll
    for (int column = 0; column < 4; column++)
#pragma unroll
      for (int p = 0; p < NEAR_PER; p++) near.dT[column][p] *= inverse_count;
  }
#if N_BASIS
  // dE/dM_b[c][k] = sum_m V_b[k][m] dE/dT[c][m], one k per lane; expansion is stored (N_TYPES, M, N_BASIS) here
#pragma unroll
  for (int p = 0; p < NEAR_PER; p++)
    if (lane + 32 * p < N_EMBEDDING)
      shared.u.columns[lane + 32 * p] = {near.dT[0][p], near.dT[1][p], near.dT[2][p], near.dT[3][p]};
  __syncwarp();
  for (int k = lane; k < N_TYPES * N_BASIS; k += 32) {
    const real* V = expansion + (size_t)(k / N_BASIS) * N_EMBEDDING * N_BASIS + k % N_BASIS;
    Vector4<real> sum = {0, 0, 0, 0};
#pragma unroll 4
    for (int m = 0; m < N_EMBEDDING; m++) {
      const real v = V[m * N_BASIS];
      const Vector4<real> g = shared.u.columns[m];
      sum.x += v * g.x, sum.y += v * g.y, sum.z += v * g.z, sum.w += v * g.w;
    }
    shared.far[k] = sum;
  }
  __syncwarp();
#endif
  int begin = 0;
#pragma unroll 1
  for (int b = 0; b < N_TYPES; b++) {
    const int end = begin + c.counts[b];
    near.numbers = far.numbers = c.pair_numbers + 8 * b;
    near.integers = far.integers = c.pair_integers + 8 * b;
    const real split2 = real(near.numbers[SPLIT2]);
#if N_BASIS
#pragma unroll
    for (int p = 0; p < FAR_PER; p++) {
      const Vector4<real> g = shared.far[b * N_BASIS + lane % FAR_LANES + FAR_LANES * p];
      far.dT[0][p] = g.x, far.dT[1][p] = g.y, far.dT[2][p] = g.z, far.dT[3][p] = g.w;
    }
#endif
    if (near.integers[RULE] == INCLUDED) walk(c, shared, begin, end, limits[q * N_TYPES + b], split2, near, far);
    begin = end;
  }
#pragma unroll
  for (int k = 0; k < 3; k++) {
    const double sum = warp_sum(sums.force[k]);
    if (lane == 0) add_fixed(forces + 4 * (size_t)c.index + k, sum);
  }
  if (VIRIAL) {
#pragma unroll
    for (int k = 0; k < 9; k++) {
      const double sum = warp_sum((double)sums.virial[k]);
      if (lane == 0) virials[9 * (size_t)c.index + k] = -sum;
    }
  }
}
#define BACKWARD_VALUES                                                                                             \
  CENTRE_VALUES, expansion, T_in, limits, gradient_reference, dD, d_stride, forces, virials, atomic_virials

extern "C" __global__ void LAUNCH_BOUNDS(BACKWARD_BLOCKS) embedding_backward(BACKWARD_ARGUMENTS) {
  __shared__ Shared shared_of_warp[WARPS];
  backward<false>(shared_of_warp, BACKWARD_VALUES);
}

extern "C" __global__ void LAUNCH_BOUNDS(BACKWARD_BLOCKS) embedding_backward_virial(BACKWARD_ARGUMENTS) {
  __shared__ Shared shared_of_warp[WARPS];
  backward<true>(shared_of_warp, BACKWARD_VALUES);
}

// ---------------------------------------------------------------- exact embedding networks

#if EXACT
// Rows "value, slope, 0, 0, 0, 0" for every entry of the lists of a few centres: a table of their own
// that is read at place 0.  One warp per entry; slow, for networks that cannot be tabulated.
// networks: layers as in dpmd.kernels.cuda.packing, one range first[k]..first[k + 1] per embedding.
extern "C" __global__ void exact_rows(
    CENTRE_ARGUMENTS, const real* __restrict__ weights, const int* __restrict__ layers,
    const double* __restrict__ activations, const int* __restrict__ first, real* __restrict__ out) {
  __shared__ real values[WARPS][2][2][256];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int entry = blockIdx.x * WARPS + warp, q = entry / stride, slot = entry % stride;
  if (q >= n) return;
  const Centre c = make_centre(q, lane, CENTRE_VALUES);
  int b = 0, end = c.counts[0];
  while (b + 1 < N_TYPES && slot >= end) end += c.counts[++b];
  const int network = slot < end ? c.pair_integers[8 * b + NETWORK] : -1;
  if (network < 0) return;
  Vector4<real> d;
  geometry r2;
  difference(c, c.row[slot], &d, &r2);
  const Pair pair = environment_of(r2, c.environment, c.statistics[MEAN], c.statistics[INVERSE_STD]);
  real(*y)[2][256] = values[warp];  // [present or next][value or slope][k]
  if (lane == 0) y[0][0][0] = real(pair.input), y[0][1][0] = 1;
  int now = 0, width = 1;
  for (int l = first[network]; l < first[network + 1]; l++) {
    const int* layer = layers + 8 * l;  // weight, n_in, n_out, bias, timestep, skip, code
    const int n_in = layer[1], n_out = layer[2];
    __syncwarp();
    for (int m = lane; m < n_out; m += 32) {
      real z = weights[layer[3] + m], z1 = 0, slope;
      for (int k = 0; k < n_in; k++) {
        const real w = weights[layer[0] + k * n_out + m];
        z += y[now][0][k] * w;
        z1 += y[now][1][k] * w;
      }
      real value = activate(layer[6], activations + 3 * l, z, &slope);
      const real timestep = layer[4] >= 0 ? weights[layer[4] + m] : real(1);
      const int from = layer[5] == 2 && m >= n_in ? m - n_in : m;
      y[1 - now][0][m] = value * timestep + (layer[5] ? y[now][0][from] : real(0));
      y[1 - now][1][m] = slope * timestep * z1 + (layer[5] ? y[now][1][from] : real(0));
    }
    now = 1 - now;
    width = n_out;
  }
  __syncwarp();
  real* row = out + (size_t)entry * (6 * NEAR_PER * 32);
  for (int m = lane; m < width; m += 32) {
    const Vector4<real> a = {y[now][0][m], y[now][1][m], 0, 0};
    const Vector2<real> b2 = {0, 0};
    ((Vector4<real>*)row)[m] = a;
    ((Vector2<real>*)(row + 4 * NEAR_PER * 32))[m] = b2;
  }
}
#endif
