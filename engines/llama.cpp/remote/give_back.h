// Memory of cells that nobody reads again, given back to the system. It reads as zeros.
#ifndef SEINE_ENGINES_LLAMA_CPP_REMOTE_GIVE_BACK_H_
#define SEINE_ENGINES_LLAMA_CPP_REMOTE_GIVE_BACK_H_

#include <cstddef>
#include <cstdint>

namespace seine::llama {

bool IsZeros(const void* data, size_t bytes);

// Whole pages of it; the rest is cleared.
void GiveBackMemory(uint8_t* begin, size_t bytes);

// The parts that are zeros: llama.cpp writes them over its whole cache when it makes it.
void GiveBackZeros(uint8_t* begin, size_t bytes);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REMOTE_GIVE_BACK_H_
