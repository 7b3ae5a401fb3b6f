// Fields by the names that people give them in files, flags and dicts. A field that was renamed states its older name
// as its json_name, so that protobuf's own JSON takes both names as well.
#ifndef SEINE_PROTO_FIELDS_FIND_FIELD_H_
#define SEINE_PROTO_FIELDS_FIND_FIELD_H_

#include <google/protobuf/descriptor.h>

#include <string>

namespace seine {

// The name that a field had before; empty: it has had no other.
inline std::string OlderName(const google::protobuf::FieldDescriptor& field) {
  return field.has_json_name() ? std::string(field.json_name()) : "";
}

// The field of this name, or of this older name; nullptr: there is none.
inline const google::protobuf::FieldDescriptor* FindField(const google::protobuf::Descriptor& type,
                                                          const std::string& name) {
  if (const auto* field = type.FindFieldByName(name); field != nullptr) return field;
  for (int i = 0; i < type.field_count(); ++i) {
    if (OlderName(*type.field(i)) == name) return type.field(i);
  }
  return nullptr;
}

}  // namespace seine

#endif  // SEINE_PROTO_FIELDS_FIND_FIELD_H_
