// Steps from Python's objects: StepSettings, PrepareStep and CheckedAppend of step.h.
#include "engines/python/step.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engines/python/values/message_dict.h"
#include "seine/v1/retrieval_service.pb.h"

namespace seine::python {
namespace {

// Attributes are looked up by interned strings, which are made once and never freed.
struct Names {
  static PyObject* Make(const char* name) { return PyUnicode_InternFromString(name); }
  PyObject* const sequence = Make("sequence");
  PyObject* const index = Make("index");
  PyObject* const id = Make("id");
  PyObject* const generation = Make("generation");
  PyObject* const layer = Make("layer");
  PyObject* const position = Make("position");
  PyObject* const keys = Make("keys");
  PyObject* const values = Make("values");
  PyObject* const queries = Make("queries");
  PyObject* const retained = Make("retained");
  PyObject* const report = Make("report");
  PyObject* const dense_from = Make("dense_from");
  PyObject* const positions = Make("positions");
  PyObject* const output = Make("output");
  PyObject* const log_sum_exp = Make("log_sum_exp");
  PyObject* const tail = Make("tail");
  PyObject* const scale = Make("scale");
  PyObject* const with_positions = Make("with_positions");
  PyObject* const prompt_mass = Make("prompt_mass");
  PyObject* const softcap = Make("softcap");
};
const Names* step_names = nullptr;

nb::object Attribute(nb::handle object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) nb::raise_python_error();
  return nb::steal(value);
}

int64_t IntAttribute(nb::handle object, PyObject* name) {
  const nb::object value = Attribute(object, name);
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  int64_t out = 0;
  if (index.is_valid() && nb::try_cast(index, out)) return out;
  PyErr_Clear();
  const std::string text = absl::StrCat(nb::cast<std::string>(nb::handle(name)), ": must be an int, not ",
                                        nb::cast<std::string>(nb::repr(value)));
  throw nb::type_error(text.c_str());
}

int LayerOf(nb::handle object) {
  const int64_t layer = IntAttribute(object, step_names->layer);
  if (layer >= std::numeric_limits<int32_t>::min() && layer <= std::numeric_limits<int32_t>::max()) {
    return static_cast<int>(layer);
  }
  throw nb::value_error(absl::StrCat("layer: must fit into 32 bits, not ", layer).c_str());
}

client::Sequence SequenceOf(nb::handle owner) {
  const nb::object sequence = Attribute(owner, step_names->sequence);
  client::Sequence out;
  const nb::object index = nb::steal(PyObject_GetAttr(sequence.ptr(), step_names->index));
  const nb::object id = nb::steal(PyObject_GetAttr(sequence.ptr(), step_names->id));
  if (index.is_valid() && id.is_valid() && nb::try_cast(index, out.index) && nb::try_cast(id, out.id)) {
    out.generation = static_cast<uint64_t>(IntAttribute(sequence, step_names->generation));
    return out;
  }
  PyErr_Clear();
  const std::string shown = nb::isinstance<nb::str>(sequence)
                                ? nb::cast<std::string>(nb::repr(sequence))
                                : "a " + nb::cast<std::string>(nb::handle(sequence.type()).attr("__name__"));
  const std::string text =
      absl::StrCat("sequence: must be a Sequence, as create_sequence returns it, or Sequence(index, id), not ", shown,
                   nb::hasattr(sequence, "handle") ? "; its .handle is one" : "");
  throw nb::type_error(text.c_str());
}

// The arrays of a step or an append, and where they may lie.
struct Arrays {
  client::ConstTensor TensorOf(nb::handle array, const char* name) const {
    views->emplace_back(array, name, where);
    return views->back().tensor(name);
  }
  client::ConstTensor Optional(nb::handle array, const char* name) const {
    return array.is_none() ? client::ConstTensor{} : TensorOf(array, name);
  }
  // A tensor that an answer is to be written to; nothing where it is None.
  std::optional<client::DeviceTensor> RoomOf(nb::handle array, const char* name) const {
    if (array.is_none()) return std::nullopt;
    const client::ConstTensor tensor = TensorOf(array, name);
    if (!tensor.on_device) {
      throw nb::value_error(
          absl::StrCat(name, ": must lie on the device that attends; answers have the host's").c_str());
    }
    return client::DeviceTensor{const_cast<void*>(tensor.data), tensor.dtype, tensor.shape};
  }

  ArrayView::Where where;
  std::vector<ArrayView>* views;
};

client::RetainedReport ReportOf(nb::handle word) {
  if (word.is_none()) return client::RetainedReport::kNone;
  v1::AppendItem wire;
  nb::dict settings;
  settings["report"] = word;
  FillMessage(settings, "", "append", &wire);
  return static_cast<client::RetainedReport>(wire.report());
}

v1::Selector SelectorOf(nb::handle settings) {
  v1::Selector out;
  FillMessage(settings, "", "selector", &out);
  return out;
}

v1::Attention AttentionOf(nb::handle attention) {
  v1::Attention out;
  nb::dict settings;
  for (PyObject* name : {step_names->tail, step_names->scale, step_names->with_positions, step_names->prompt_mass,
                         step_names->softcap}) {
    settings[nb::handle(name)] = Attribute(attention, name);
  }
  FillMessage(settings, "", "attention", &out);
  return out;
}

std::string Shown(const client::Shape& shape) {
  std::string text = "[";
  for (const int64_t dim : shape) absl::StrAppend(&text, text.size() > 1 ? ", " : "", dim);
  return text + "]";
}

}  // namespace

void MakeNames() {
  if (step_names == nullptr) step_names = new Names;
}

void StepSettings::Set(nb::handle selector, nb::handle attention, client::DecodeStep* step) {
  const bool both = selector_.is_valid() && !selector.is_none();
  const int same = both ? PyObject_RichCompareBool(selector_.ptr(), selector.ptr(), Py_EQ) : 0;
  if (same < 0) PyErr_Clear();  // values that do not compare, as arrays
  if (same <= 0) {
    selector_.reset();
    step->selector = selector.is_none() ? v1::Selector() : SelectorOf(selector);
    if (!selector.is_none()) selector_ = nb::steal(PyDict_Copy(selector.ptr()));
    if (!selector.is_none() && !selector_.is_valid()) PyErr_Clear();  // another mapping
  }
  if (attention_.is(attention)) return;
  attention_.reset();
  step->attention = std::nullopt;
  if (!attention.is_none()) step->attention = AttentionOf(attention);
  attention_ = nb::borrow(attention);
}

void PrepareStep(nb::handle appends, nb::handle items, ArrayView::Where where, PreparedStep* out) {
  client::DecodeStep& step = out->step;
  step.appends.clear();
  step.items.clear();
  out->arrays.clear();
  const Arrays arrays = {where, &out->arrays};
  for (nb::handle append : nb::iter(appends)) {
    client::AppendItem item;
    item.sequence = SequenceOf(append);
    item.layer = LayerOf(append);
    item.position = IntAttribute(append, step_names->position);
    item.keys = arrays.TensorOf(Attribute(append, step_names->keys), "keys");
    item.values = arrays.Optional(Attribute(append, step_names->values), "values");
    item.queries = arrays.Optional(Attribute(append, step_names->queries), "queries");
    // Where nothing is retained a report is none, which Python need not compute.
    if (!Attribute(append, step_names->retained).is_none()) {
      item.report = ReportOf(Attribute(append, step_names->report));
    }
    step.appends.push_back(std::move(item));
  }
  for (nb::handle asked : nb::iter(items)) {
    client::RetrieveItem item;
    item.sequence = SequenceOf(asked);
    item.layer = LayerOf(asked);
    item.queries = arrays.TensorOf(Attribute(asked, step_names->queries), "queries");
    if (!Attribute(asked, step_names->dense_from).is_none())
      item.dense_from = IntAttribute(asked, step_names->dense_from);
    item.positions = arrays.Optional(Attribute(asked, step_names->positions), "positions");
    item.output = arrays.RoomOf(Attribute(asked, step_names->output), "output");
    item.log_sum_exp = arrays.RoomOf(Attribute(asked, step_names->log_sum_exp), "log_sum_exp");
    step.items.push_back(std::move(item));
  }
}

client::AppendItem CheckedAppend(client::Sequence sequence, int layer, int64_t position, nb::handle keys,
                                 nb::handle values, nb::handle queries, nb::handle report, ArrayView::Where where,
                                 std::vector<ArrayView>* views) {
  client::AppendItem item{std::move(sequence), layer, position, {}, {}};
  const Arrays arrays = {where, views};
  views->emplace_back(keys, "keys", where);
  if (views->back().shape().size() != 3) {
    const std::string text =
        absl::StrCat("keys: must be [tokens, num_kv_heads, head_dim], not ", views->back().ShapeText());
    throw nb::value_error(text.c_str());
  }
  item.keys = views->back().tensor("keys");
  item.values = arrays.Optional(values, "values");
  if (!values.is_none() && item.values.shape != item.keys.shape) {
    const std::string text = absl::StrCat("values: must have the shape of keys, ", Shown(item.keys.shape), ", not ",
                                          Shown(item.values.shape));
    throw nb::value_error(text.c_str());
  }
  item.queries = arrays.Optional(queries, "queries");
  const client::Shape& asked = item.queries.shape;
  if (!queries.is_none() && (asked.size() != 3 || asked[0] < 1 || asked[0] > item.keys.shape[0])) {
    throw nb::value_error("queries: must be [1 to tokens, num_q_heads, head_dim]");
  }
  item.report = ReportOf(report);
  return item;
}

}  // namespace seine::python
