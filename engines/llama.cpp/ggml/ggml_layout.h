// Whether a ggml is laid out as in the headers that the plug-in was built with. The version of the backend interface
// does not say: tensors, nodes and numbers of types change under it.
#ifndef SEINE_ENGINES_LLAMA_CPP_GGML_GGML_LAYOUT_H_
#define SEINE_ENGINES_LLAMA_CPP_GGML_GGML_LAYOUT_H_

namespace seine::llama {

// Has ggml make the nodes that the plug-in reads, and a backend of the CPU, and compares each part that is read with
// what was asked for. Returns what differs; nullptr: nothing does. Functions are those of FindInGgml.
const char* UnfitLayout();

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_GGML_GGML_LAYOUT_H_
