// Attention over the paged KV cache of an engine in Python, vLLM's: PagedAttention, PagedStep and PagedLayer of
// _native.pyi.
#ifndef SEINE_ENGINES_PYTHON_PAGED_PAGED_H_
#define SEINE_ENGINES_PYTHON_PAGED_PAGED_H_

#include <nanobind/nanobind.h>

namespace seine::python {

// Puts the classes into the module. Needs the GIL.
void AddPagedClasses(nanobind::module_& module);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PAGED_PAGED_H_
