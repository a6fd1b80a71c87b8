// Fitting networks of few atoms: one kernel per layer, product and activation together.
//
// With a hundred atoms a step is a chain of kernels that each wait for memory, so their number counts, not
// their arithmetic.  A block takes 8 rows and 32 columns; its 16 warps share the sum over k, then each
// finishes one row (the first 8).  Plain numbers of the kernel's type (fp32 in mixed and half precision), always summed in
// the same order.
//
// Latency of a layer of k inputs: about k / 16 / 8 round trips to the L2 cache, 3 us for 1600 on an H200.

#define FEW_WARPS 16
#define FEW_ROWS 8
#ifndef FEW_BOUNDS  // two blocks to a multiprocessor: the last layer has several per multiprocessor
#define FEW_BOUNDS __launch_bounds__(32 * FEW_WARPS, 2)
#endif

// sums[row of the block][lane] of input (n, k) times weight (k, width), at column first + lane; then warp w
// of the block returns the number of row w (the warps beyond repeat it).
__device__ __forceinline__ real few_product(
    real (*sums)[FEW_ROWS][32], int n, int k, int width, const real* __restrict__ input,
    const real* __restrict__ weight, int first_row, int column) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  real sum[FEW_ROWS];
#pragma unroll
  for (int r = 0; r < FEW_ROWS; r++) sum[r] = 0;
  const int share = (k / 4 + FEW_WARPS - 1) / FEW_WARPS * 4, begin = warp * share, end = min(begin + share, k);
  const real* column_of_weight = weight + min(column, width - 1);
#pragma unroll 2
  for (int i = begin; i < end; i += 4) {  // k is a multiple of 4
    real w[4];
#pragma unroll
    for (int c = 0; c < 4; c++) w[c] = column_of_weight[(size_t)(i + c) * width];
#pragma unroll
    for (int r = 0; r < FEW_ROWS; r++) {
      const Vector4<real> x = *(const Vector4<real>*)(input + (size_t)min(first_row + r, n - 1) * k + i);
      sum[r] += x.x * w[0] + x.y * w[1] + x.z * w[2] + x.w * w[3];
    }
  }
#pragma unroll
  for (int r = 0; r < FEW_ROWS; r++) sums[warp][r][lane] = sum[r];
  __syncthreads();
  real total = 0;
#pragma unroll
  for (int w = 0; w < FEW_WARPS; w++) total += sums[w][warp % FEW_ROWS][lane];
  return total;
}

// y, slope (n, width) of a hidden layer; for the last one (w not null) instead of y the input h = w slope of
// the first backward product goes to `y`, and the row's part of the energy to partial (n, blocks of columns).
extern "C" __global__ void FEW_BOUNDS few_forward(
    int n, int k, int width, const real* __restrict__ input, const real* __restrict__ weight,
    const real* __restrict__ bias, const real* __restrict__ timestep, int code, const double* __restrict__ parameters,
    int skip, const real* __restrict__ before, real* __restrict__ y, real* __restrict__ slope,
    const real* __restrict__ w, double* __restrict__ partial) {
  __shared__ real sums[FEW_WARPS][FEW_ROWS][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, column_blocks = (width + 31) / 32;
  const int first_row = blockIdx.x / column_blocks * FEW_ROWS, block = blockIdx.x % column_blocks;
  const int column = 32 * block + lane, q = warp < FEW_ROWS ? first_row + warp : n;
  const real z = few_product(sums, n, k, width, input, weight, first_row, column);
  const bool valid = q < n && column < width;
  double energy = 0;
  if (valid) {
    real d, value = activate(code, parameters, z + bias[column], &d);
    if (timestep) value *= timestep[column], d *= timestep[column];
    value += skipped(before + (size_t)q * k, skip, k, column);
    const size_t place = (size_t)q * width + column;
    slope[place] = d;
    y[place] = w ? w[column] * d : value;
    if (w) energy = (double)value * (double)w[column];
  }
  if (w) {
    energy = warp_sum(energy);
    if (lane == 0 && q < n) partial[(size_t)q * column_blocks + block] = energy;
  }
}

// Product of h (n, k) with a transposed weight (k, width), then g = product + skip of g above and
// h_below = g slope; slope null: the gradient of the descriptor, only g is written.
// The first one (partial not null) also adds up the energies of `parts` blocks of columns.
extern "C" __global__ void FEW_BOUNDS few_backward(
    int n, int k, int width, const real* __restrict__ h, const real* __restrict__ weight,
    const real* __restrict__ above, int above_stride, int skip, const real* __restrict__ slope, real* __restrict__ g,
    real* __restrict__ h_below, const double* __restrict__ partial, int parts, const int* __restrict__ centres,
    const double* __restrict__ constants, double* __restrict__ energies) {
  __shared__ real sums[FEW_WARPS][FEW_ROWS][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, column_blocks = (width + 31) / 32;
  const int first_row = blockIdx.x / column_blocks * FEW_ROWS, block = blockIdx.x % column_blocks;
  const int column = 32 * block + lane, q = warp < FEW_ROWS ? first_row + warp : n;
  real value = few_product(sums, n, k, width, h, weight, first_row, column);
  if (q < n && column < width) {
    const real* upper = above + (size_t)q * above_stride;
    if (skip != SKIP_NONE && slope) value += upper[column];
    if (skip == SKIP_DOUBLE && slope) value += upper[width + column];
    const size_t place = (size_t)q * width + column;
    g[place] = value;
    if (slope) h_below[place] = value * slope[place];
  }
  if (partial && block == 0 && lane == 0 && q < n) {
    double energy = constants[centres[q]];
    for (int p = 0; p < parts; p++) energy += partial[(size_t)q * parts + p];
    energies[centres[q]] = energy;
  }
}
