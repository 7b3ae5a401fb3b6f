// Attention of prompts over arrays of Python: PromptMask and PromptAttention of _native.pyi.
#ifndef SEINE_ENGINES_PYTHON_PROMPT_H_
#define SEINE_ENGINES_PYTHON_PROMPT_H_

#include <nanobind/nanobind.h>

namespace seine::python {

// Puts both classes into the module. Needs the GIL.
void AddPromptClasses(nanobind::module_& module);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PROMPT_H_
