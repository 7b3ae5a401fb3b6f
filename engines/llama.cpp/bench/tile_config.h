// Included before all of llama.cpp by run.sh. g++ 12 tells its optimiser that the configuration of AMX's tiles is 8
// bytes, where it is 64: what is written to the others is left out, and llama.cpp's kernels end in a general protection
// fault.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_TILE_CONFIG_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_TILE_CONFIG_H_

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(at) __asm__ volatile("ldtilecfg %0" ::"m"(*reinterpret_cast<const char(*)[64]>(at)))
#define _tile_storeconfig(at) __asm__ volatile("sttilecfg %0" : "=m"(*reinterpret_cast<char(*)[64]>(at)))
#endif

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_TILE_CONFIG_H_
