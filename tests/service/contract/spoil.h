// Requests spoiled in one place each, by reflection: every way for every field, so that a new field is attacked by
// itself.
#ifndef SEINE_TESTS_SERVICE_CONTRACT_SPOIL_H_
#define SEINE_TESTS_SERVICE_CONTRACT_SPOIL_H_

#include <google/protobuf/message.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/service/contract/fields.h"

namespace seine::test {

using SpoiltRequest = std::function<void(const std::string& what, const google::protobuf::Message& request)>;
using SpoiltBytes = std::function<void(const std::string& what, const std::string& bytes)>;

// Integers at and around every limit, floats that are none, enums without a name, texts of bad lengths and characters,
// parts that are missing, empty, doubled or many.
void SpoilFields(const google::protobuf::Message& right, const SpoiltRequest& visit);

// Each tensor's element type, rank, every combination of awkward sizes, its bytes' number, and single elements.
void SpoilTensors(const google::protobuf::Message& right, const SpoiltRequest& visit);

// The bytes of the request cut short and altered, and fields that no message has.
void SpoilBytes(const google::protobuf::Message& right, const SpoiltBytes& visit);

// Awkward values, for whoever makes requests up.
const std::vector<Integer>& AwkwardIntegers();
const std::vector<double>& AwkwardFloats();
const std::vector<std::string>& AwkwardTexts();

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_CONTRACT_SPOIL_H_
