// Random changes of a message that keep it one: by its descriptor, so that every field of every request is reached.
#ifndef SEINE_TESTS_FUZZ_MUTATE_MESSAGE_H_
#define SEINE_TESTS_FUZZ_MUTATE_MESSAGE_H_

#include <google/protobuf/message.h>

#include "tests/fuzz/mutate/bytes.h"

namespace seine::fuzz {

// One change of one field anywhere below the message, given or not: a number, a text of the server's or any other, a
// part that comes, goes or is doubled. A tensor mostly keeps as many bytes as its shape says.
void MutateMessage(google::protobuf::Message* message, Random& random, const ByteMutator& bytes);

}  // namespace seine::fuzz

#endif  // SEINE_TESTS_FUZZ_MUTATE_MESSAGE_H_
