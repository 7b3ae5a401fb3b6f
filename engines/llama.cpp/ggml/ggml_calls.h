// The ggml that loads this plug-in. Its functions are looked up in the library that calls, and in no other: a process
// may hold ggml out of everybody's sight (dlopen's RTLD_LOCAL, as Python has it), under any file's name, and twice. So
// the plug-in needs no libggml.so by name, and one file serves every version of ggml's backend interface that it knows.
#ifndef SEINE_ENGINES_LLAMA_CPP_GGML_GGML_CALLS_H_
#define SEINE_ENGINES_LLAMA_CPP_GGML_GGML_CALLS_H_

#include <string>

namespace seine::llama {

// Versions 2 and 3 differ in functions of buffer types alone, of which the plug-in makes none.
constexpr int kInterfaces[] = {2, 3};

struct Ggml {
  std::string file;  // that holds ggml: a library or a program
  std::string version;
  int interface = 0;    // GGML_BACKEND_API_VERSION, as its own backends state it
  std::string refusal;  // why the plug-in does not serve it; empty: it does
};

// Binds the functions of ggml_calls.cc to those of the library in which `caller` lies, and looks whether that ggml is
// built as the plug-in knows it: its version, then what is read of it (ggml_layout.h). The first that is served stays
// bound.
const Ggml& BindGgml(const void* caller);
// What BindGgml said last; refused where it was not called.
const Ggml& TheGgml();
// A function of the bound library; nullptr: it has none of that name.
void* FindInGgml(const char* name);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_GGML_GGML_CALLS_H_
