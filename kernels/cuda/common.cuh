// Types, warp operations and rounding shared by all kernels.
//
// Kernels are written for logical warps of 32 lanes.  Everything that belongs to one vendor is in
// this file, behind guards, with a portable way beside it, so that CuPy on ROCm and the emulation
// on a CPU (tests/kernels/emulator.h) compile the same sources.
//
// Macros: REAL float or double; WARPS warps per block.

#ifndef REAL
#define REAL float
#endif
#ifndef WARPS
#define WARPS 4
#endif
#define ALL_LANES 0xffffffffu
#ifndef LAUNCH_BOUNDS
#define LAUNCH_BOUNDS(minimum_blocks) __launch_bounds__(32 * WARPS, minimum_blocks)
#endif

typedef REAL real;
typedef long long int64;
typedef unsigned long long uint64;

template <typename T> struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) Vector4 { T x, y, z, w; };
template <typename T> struct alignas(2 * sizeof(T) > 16 ? 16 : 2 * sizeof(T)) Vector2 { T x, y; };

// Position (Å) of a local or ghost atom, and the row of the force array that its force is added to:
// itself, or for an image of a local atom that atom.
struct alignas(16) Atom { double x, y, z; int64 owner; };
// Velocity (Å/ps) and inverse mass ((Å/ps^2) / (eV/Å)) of a local atom.
struct alignas(16) Motion { double x, y, z, inverse_mass; };

// Forces (eV/Å) and virials (eV) are added up as 64-bit integers in units of 2^-42, so that the sum
// does not depend on the order: bitwise the same in every run.  Largest value 2^21 = 2 million eV/Å.
#define FIXED_SCALE 4398046511104.0

__device__ __forceinline__ int64 to_fixed(double value) { return (int64)llrint(value * FIXED_SCALE); }
__device__ __forceinline__ double from_fixed(int64 value) { return (double)value * (1.0 / FIXED_SCALE); }
__device__ __forceinline__ void add_fixed(int64* place, double value) {
  atomicAdd((uint64*)place, (uint64)to_fixed(value));
}

// An integer carried in a floating-point number of the kernel's type.
__device__ __forceinline__ float carry(int value, float) { return __int_as_float(value); }
__device__ __forceinline__ double carry(int value, double) { return (double)value; }
__device__ __forceinline__ int carried(float value) { return __float_as_int(value); }
__device__ __forceinline__ int carried(double value) { return (int)value; }

__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return 1.0 / sqrt(x); }

template <typename T> __device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(ALL_LANES, value, offset);
  return value;
}

// ---------------------------------------------------------------- inputs of matrix products
// How a number is handed to the matrix units: as it is (PLAIN), rounded to fp16 (HALF), or as the sum
// of two bf16 numbers (SPLIT: 16 bits of mantissa, products hi hi + lo hi + hi lo).
#define PLAIN 0
#define HALF 1
#define SPLIT 2
#ifndef INPUT_KIND
#define INPUT_KIND PLAIN
#endif
#if INPUT_KIND == PLAIN
typedef real input_t;
#else
typedef unsigned short input_t;
#endif

// Two numbers rounded to bf16, the first in the low half of the word.
__device__ __forceinline__ unsigned bf16_pair(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
  return word;
#else
  unsigned u = (unsigned)__float_as_int(a), v = (unsigned)__float_as_int(b);
  u = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  v = (v + 0x7fffu + ((v >> 16) & 1u)) >> 16;
  return u | (v << 16);
#endif
}
__device__ __forceinline__ float bf16_low(unsigned word) { return __int_as_float((int)(word << 16)); }
__device__ __forceinline__ float bf16_high(unsigned word) { return __int_as_float((int)(word & 0xffff0000u)); }

// Two numbers rounded to fp16.
__device__ __forceinline__ unsigned half_pair(float a, float b) {
#if defined(__CUDA_ARCH__)
  unsigned short u, v;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(u) : "f"(a));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v) : "f"(b));
  return (unsigned)u | ((unsigned)v << 16);
#else
  _Float16 u = (_Float16)a, v = (_Float16)b;
  unsigned short s, t;
  __builtin_memcpy(&s, &u, 2);
  __builtin_memcpy(&t, &v, 2);
  return (unsigned)s | ((unsigned)t << 16);
#endif
}

// Write elements k and k + 1 of a row of a product's input.  Parts of a SPLIT row follow one another
// at distance `part`: hi, lo and, if `parts` is 3, hi again.
__device__ __forceinline__ void put_input(input_t* row, int k, int part, int parts, real a, real b) {
#if INPUT_KIND == PLAIN
  Vector2<real> pair = {a, b};
  *(Vector2<real>*)(row + k) = pair;
#elif INPUT_KIND == HALF
  *(unsigned*)(row + k) = half_pair((float)a, (float)b);
#else
  unsigned high = bf16_pair((float)a, (float)b);
  unsigned low = bf16_pair((float)a - bf16_low(high), (float)b - bf16_high(high));
  *(unsigned*)(row + k) = high;
  *(unsigned*)(row + part + k) = low;
  if (parts == 3) *(unsigned*)(row + 2 * part + k) = high;
#endif
}

// ---------------------------------------------------------------- activation functions
enum Activation { LINEAR, TANH, RELU, RELU6, SOFTPLUS, SIGMOID, GELU, SILU, SILUT };

__device__ __forceinline__ float tangent_h(float x) { return tanhf(x); }
__device__ __forceinline__ double tangent_h(double x) { return tanh(x); }

// Value of an activation function (numbers as in dpmd.kernels.cpu.activations) and its slope.
// parameters: threshold, slope and offset of silut.
__device__ __forceinline__ real activate(int code, const double* parameters, real x, real* slope) {
  const real one = 1, half = real(0.5);
  if (code == TANH) {
    real t = tangent_h(x);
    *slope = one - t * t;
    return t;
  }
  switch (code) {
    case LINEAR: *slope = one; return x;
    case RELU: *slope = x > 0 ? one : 0; return x > 0 ? x : 0;
    case RELU6: *slope = (x > 0 && x < 6) ? one : 0; return x < 0 ? 0 : (x > 6 ? 6 : x);
    case SOFTPLUS:
      *slope = half * (one + tangent_h(half * x));
      return (x > 0 ? x : 0) + real(log1p(exp(-fabs(double(x)))));
    case SIGMOID: {
      real s = half * (one + tangent_h(half * x));
      *slope = s * (one - s);
      return s;
    }
    case GELU: {
      const real c = real(0.7978845608028654), k = real(0.044715);
      real t = tangent_h(c * (x + k * x * x * x));
      *slope = half * (one + t) + half * x * (one - t * t) * c * (one + 3 * k * x * x);
      return half * x * (one + t);
    }
    default: {
      if (code == SILU || x < real(parameters[0])) {
        real s = half * (one + tangent_h(half * x));
        *slope = s + x * s * (one - s);
        return x * s;
      }
      real k = real(parameters[1]), t = tangent_h(k * (x - real(parameters[0])));
      *slope = k * (one - t * t);
      return t + real(parameters[2]);
    }
  }
}
