// Emulation of a block by fibres, one a thread, to run the CUDA kernels on a CPU.  Slow, deterministic.
//
// Every warp operation is a meeting of all lanes: a lane leaves its number, the others run up to the same
// point, then it reads its partner's.  Blocks run one after another.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>
using std::max;
using std::min;
#define WARPS 1
#define MOST_THREADS 512
#define LAUNCH_BOUNDS(minimum_blocks)
#define FEW_BOUNDS
#define __global__
#define __device__
#define __shared__ static
#define __restrict__
#define __forceinline__ inline

namespace emulator {
struct Index { int x, y, z; };
static Index block{0, 0, 0}, block_size{32, 1, 1};
static int thread, waiting, barriers;
static bool done[MOST_THREADS];
static ucontext_t first_entry[MOST_THREADS];
static jmp_buf place[MOST_THREADS], scheduler;
static int parity[MOST_THREADS];
static double numbers[2][MOST_THREADS];
static std::function<void()> body;

static void meet() {
  const int me = thread;
  if (!_setjmp(place[me])) _longjmp(scheduler, 1);
}
template <class T> T exchange(T value, int source) {
  const int me = thread, p = parity[me];
  parity[me] ^= 1;
  memcpy(&numbers[p][me], &value, sizeof(T));
  meet();
  memcpy(&value, &numbers[p][(me & ~31) | (source & 31)], sizeof(T));
  return value;
}
static void run_lane() {
  body();
  done[thread] = true;
  _longjmp(scheduler, 1);
}
template <class... Arguments, size_t... K>
void launch(void (*kernel)(Arguments...), int blocks, void** arguments, std::index_sequence<K...>) {
  static char* stacks = (char*)malloc((size_t)MOST_THREADS << 17);
  const int threads = block_size.x;
  body = [=] { kernel(*(Arguments*)arguments[K]...); };
  for (int b = 0; b < blocks; b++) {
    block.x = b;
    for (int i = 0; i < threads; i++) {
      getcontext(&first_entry[i]);
      first_entry[i].uc_stack.ss_sp = stacks + ((size_t)i << 17);
      first_entry[i].uc_stack.ss_size = 1 << 17;
      first_entry[i].uc_link = nullptr;
      makecontext(&first_entry[i], run_lane, 0);
      done[i] = false, parity[i] = 0;
    }
    static volatile int i;
    waiting = 0;
    for (i = 0; i < threads; i++) {
      thread = i;
      if (!_setjmp(scheduler)) setcontext(&first_entry[i]);
    }
    static volatile bool any;
    for (any = true; any;) {
      any = false;
      for (i = 0; i < threads; i++) {
        if (done[i]) continue;
        thread = i;
        any = true;
        if (!_setjmp(scheduler)) _longjmp(place[i], 1);
      }
    }
  }
}
static void meet_all() {
  const int now = barriers;
  if (++waiting == block_size.x) {
    waiting = 0;
    barriers++;
  }
  while (barriers == now) meet();
}
template <class... Arguments> void emulate(void (*kernel)(Arguments...), int blocks, int threads, void** arguments) {
  block_size.x = threads;
  launch(kernel, blocks, arguments, std::index_sequence_for<Arguments...>());
}
}  // namespace emulator

#define blockIdx emulator::block
#define blockDim emulator::block_size
#define threadIdx (emulator::Index{emulator::thread, 0, 0})
inline void __syncthreads() { emulator::meet_all(); }
inline void __syncwarp() { emulator::meet(); }
template <class T> inline T __shfl_xor_sync(unsigned, T v, int o) { return emulator::exchange(v, emulator::thread ^ o); }
template <class T> inline T __shfl_sync(unsigned, T v, int s) { return emulator::exchange(v, s); }
inline unsigned __ballot_sync(unsigned, bool b) {
  const int me = emulator::thread, p = emulator::parity[me];
  emulator::exchange(b ? 1.0 : 0.0, 0);
  unsigned lanes = 0;
  for (int i = 0; i < 32; i++) lanes |= unsigned(emulator::numbers[p][(me & ~31) | i] != 0) << i;
  return lanes;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class To, class From> inline To bits_as(From from) { To to; memcpy(&to, &from, sizeof(To)); return to; }
inline float __int_as_float(int i) { return bits_as<float>(i); }
inline int __float_as_int(float f) { return bits_as<int>(f); }
inline long long __double_as_longlong(double d) { return bits_as<long long>(d); }
inline double __longlong_as_double(long long i) { return bits_as<double>(i); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <class T> inline void atomicAdd(T* p, T v) { *p += v; }
inline void atomicMax(int* p, int v) { *p = max(*p, v); }
