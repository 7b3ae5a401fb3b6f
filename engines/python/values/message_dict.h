// Messages of the wire contract as dicts of Python, both ways, by protobuf's reflection: a new field needs no line
// here.
//
// What comes back reads as what was put in: enums are words without their type's name ("float16", "per_q_head"),
// tensors numpy arrays, and what is absent is None, which in turn may be put in and means: left out. Short forms that
// go in: a scorer's name, a budget's tokens, (p, floor, cap) of a mass_p, an object with index, id and generation for a
// handle. All needs the GIL.
#ifndef SEINE_ENGINES_PYTHON_VALUES_MESSAGE_DICT_H_
#define SEINE_ENGINES_PYTHON_VALUES_MESSAGE_DICT_H_

#include <google/protobuf/message.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string

#include <string>

namespace seine::python {

namespace nb = nanobind;

// Called once, when the module is loaded.
void ImportMapping();

// Sets fields of `message`. A name that the message does not have is a ValueError, as are two fields of which there can
// be one, and words that are none; a wrong type is a TypeError. Errors open with the field's path, under `path`, which
// may be empty; `what` is what an empty path is called.
void FillMessage(nb::handle settings, const std::string& path, const char* what, google::protobuf::Message* message);

// Every field. A Status is None where it is OK, else a dict of code, message, field and reason.
nb::dict DictOf(const google::protobuf::Message& message);

// The fields of a message: field -> a dict of type, repeated, optional, and of enum (words) or message (a name).
nb::dict SchemaOf(const google::protobuf::Descriptor& type);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_VALUES_MESSAGE_DICT_H_
