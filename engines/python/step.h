// One step of a decode stream between Python's objects (seine_kv.messages) and the client's. All needs the GIL.
#ifndef SEINE_ENGINES_PYTHON_STEP_H_
#define SEINE_ENGINES_PYTHON_STEP_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string

#include <vector>

#include "client/types.h"
#include "engines/python/values/arrays.h"

namespace seine::python {

// The names of attributes and keys that are read and written a step; called once, when the module is loaded.
void MakeNames();

// A step, and the arrays that its tensors lie in: they must live until it has been written.
struct PreparedStep {
  client::DecodeStep step;
  std::vector<ArrayView> arrays;
};

// Settings of a stream's steps, made into messages when they change. A selector is compared by its value, and an
// Attention, which is frozen, by which object it is.
class StepSettings {
 public:
  // `selector`: a dict, or None; `attention`: an object with the attributes of messages.Attention, or None. `step`: the
  // same at every call, which keeps the messages. TypeError and ValueError name the attribute.
  void Set(nb::handle selector, nb::handle attention, client::DecodeStep* step);

 private:
  nb::object selector_, attention_;  // that the messages are of
};

// `appends`: objects with the attributes of messages.Append; `items`: of messages.Item, whose tensors may lie `where`.
// Appends and items of a step before go, settings stay. TypeError and ValueError name the attribute.
void PrepareStep(nb::handle appends, nb::handle items, ArrayView::Where where, PreparedStep* out);

// One append by its attributes' values, with `arrays` as above. ValueError where keys are not [tokens, num_kv_heads,
// head_dim], values not of the same shape, queries not [1 to tokens, num_q_heads, head_dim], or a report is none.
client::AppendItem CheckedAppend(client::Sequence sequence, int layer, int64_t position, nb::handle keys,
                                 nb::handle values, nb::handle queries, nb::handle report, ArrayView::Where where,
                                 std::vector<ArrayView>* arrays);

// Reports of retained positions, as dicts of the words of messages.Retained.
nb::dict RetainedDict(client::Retained retained);

// (append_errors, answers, attended, server_us, error, retained), as _native.pyi describes them. Arrays take over what
// the answer holds.
nb::tuple StepResult(client::DecodeAnswer* answer, bool with_positions);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_STEP_H_
