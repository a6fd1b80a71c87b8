// Fitting networks between the matrix products: bias, activation, residual and their derivatives.
//
// For layers y_l = skip(y_(l-1)) + timestep f(z_l), z_l = y_(l-1) W_l + b_l and E = y_top . w + b:
//   forwards   z_l by a product; then slope_l = timestep f'(z_l) replaces z_l, y_l is kept
//   top        E and h_top = w slope_top
//   backwards  through = h_(l+1) W_(l+1)^T by a product; g_l = through + skip of g_(l+1); h_l = g_l slope_l
//   dE/dD      h_0 W_0^T
// One warp per row (centre); bytes per row and layer about 20 x width in fp32, all contiguous.

enum { SKIP_NONE, SKIP_ADD, SKIP_DOUBLE };

__device__ __forceinline__ real skipped(const real* row, int skip, int n_in, int k) {
  if (skip == SKIP_ADD) return row[k];
  if (skip == SKIP_DOUBLE) return row[k < n_in ? k : k - n_in];
  return 0;
}

// z (n, width): replaced by the slope.  before (n, n_in): y of the layer below, or null.
// y (n, width), and the next product's input (parts x part elements a row).  width is even.
extern "C" __global__ void fitting_forward(
    int n, int width, int n_in, real* __restrict__ z, const real* __restrict__ bias, const real* __restrict__ timestep,
    int code, const double* __restrict__ parameters, int skip, const real* __restrict__ before, real* __restrict__ y,
    input_t* __restrict__ input) {
  const int lane = threadIdx.x & 31, q = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (q >= n) return;
  const int parts = INPUT_KIND == SPLIT ? 3 : 1;
  real* row = z + (size_t)q * width;
  const real* below = before + (size_t)q * n_in;
  for (int k = 2 * lane; k < width; k += 64) {
    Vector2<real> value = *(Vector2<real>*)(row + k), slope;
    value.x = activate(code, parameters, value.x + bias[k], &slope.x);
    value.y = activate(code, parameters, value.y + bias[k + 1], &slope.y);
    if (timestep) {
      value.x *= timestep[k], slope.x *= timestep[k];
      value.y *= timestep[k + 1], slope.y *= timestep[k + 1];
    }
    value.x += skipped(below, skip, n_in, k);
    value.y += skipped(below, skip, n_in, k + 1);
    *(Vector2<real>*)(row + k) = slope;
    *(Vector2<real>*)(y + (size_t)q * width + k) = value;
    put_input(input + (size_t)q * width * parts, k, width, parts, value.x, value.y);
  }
}

// The last hidden layer: energies[centres[q]] = y . w + constants[centres[q]] (eV) and the input h = w slope,
// less about (width) unless that is null.
extern "C" __global__ void fitting_top(
    int n, const int* __restrict__ centres, int width, int n_in, const real* __restrict__ z,
    const real* __restrict__ bias, const real* __restrict__ timestep, int code, const double* __restrict__ parameters,
    int skip, const real* __restrict__ before, const real* __restrict__ w, const real* __restrict__ about,
    const double* __restrict__ constants, double* __restrict__ energies, input_t* __restrict__ input) {
  const int lane = threadIdx.x & 31, q = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (q >= n) return;
  const int parts = INPUT_KIND == SPLIT ? 3 : 1;
  const real* row = z + (size_t)q * width;
  const real* below = before + (size_t)q * n_in;
  double energy = 0;
  for (int k = 2 * lane; k < width; k += 64) {
    Vector2<real> value = *(const Vector2<real>*)(row + k), slope;
    value.x = activate(code, parameters, value.x + bias[k], &slope.x);
    value.y = activate(code, parameters, value.y + bias[k + 1], &slope.y);
    if (timestep) {
      value.x *= timestep[k], slope.x *= timestep[k];
      value.y *= timestep[k + 1], slope.y *= timestep[k + 1];
    }
    value.x += skipped(below, skip, n_in, k);
    value.y += skipped(below, skip, n_in, k + 1);
    energy += (double)value.x * (double)w[k] + (double)value.y * (double)w[k + 1];
    const real x = about ? about[k] : real(0), y = about ? about[k + 1] : real(0);
    put_input(input + (size_t)q * width * parts, k, width, parts, w[k] * slope.x - x, w[k + 1] * slope.y - y);
  }
  energy = warp_sum(energy);
  if (lane == 0) energies[centres[q]] = energy + constants[centres[q]];
}

// through (n, width): h_(l+1) W_(l+1)^T, replaced by g_l.  above (n, width_above): g_(l+1), one row for all
// if above_stride is 0; skip: of the layer above.  slope (n, width).  The input is h_l less about (width), if any.
extern "C" __global__ void fitting_backward(
    int n, int width, real* __restrict__ through, const real* __restrict__ above, int above_stride, int skip,
    const real* __restrict__ slope, const real* __restrict__ about, input_t* __restrict__ input) {
  const int lane = threadIdx.x & 31, q = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (q >= n) return;
  const int parts = INPUT_KIND == SPLIT ? 3 : 1;
  const real* upper = above + (size_t)q * above_stride;
  for (int k = 2 * lane; k < width; k += 64) {
    Vector2<real> g = *(Vector2<real>*)(through + (size_t)q * width + k);
    const Vector2<real> s = *(const Vector2<real>*)(slope + (size_t)q * width + k);
    if (skip != SKIP_NONE) g.x += upper[k], g.y += upper[k + 1];
    if (skip == SKIP_DOUBLE) g.x += upper[width + k], g.y += upper[width + k + 1];
    *(Vector2<real>*)(through + (size_t)q * width + k) = g;
    const real x = about ? about[k] : real(0), y = about ? about[k + 1] : real(0);
    put_input(input + (size_t)q * width * parts, k, width, parts, g.x * s.x - x, g.y * s.y - y);
  }
}

// Frame and atomic parameters (atoms, n_extra) into the columns after the descriptor.
extern "C" __global__ void put_extra(
    int n, const int* __restrict__ centres, const double* __restrict__ extra, int n_extra, int first_column,
    input_t* __restrict__ D, int d_stride) {
  const int q = blockIdx.x * blockDim.x + threadIdx.x;
  if (q >= n) return;
  const int parts = INPUT_KIND == SPLIT ? 2 : 1;
  for (int k = 0; k < n_extra; k += 2) {
    const double* row = extra + (size_t)centres[q] * n_extra;
    put_input(D + (size_t)q * d_stride * parts, first_column + k, d_stride, parts, real(row[k]),
              k + 1 < n_extra ? real(row[k + 1]) : real(0));
  }
}
