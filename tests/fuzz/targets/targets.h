// Each file of targets, and what it adds to the list (list.cc).
#ifndef SEINE_TESTS_FUZZ_TARGETS_TARGETS_H_
#define SEINE_TESTS_FUZZ_TARGETS_TARGETS_H_

#include <vector>

#include "tests/fuzz/target.h"

namespace seine::fuzz {

void AddCallTargets(std::vector<TargetEntry>* out);      // calls.cc: one a service, and all services together
void AddChannelTarget(std::vector<TargetEntry>* out);    // channel.cc
void AddAnswersTarget(std::vector<TargetEntry>* out);    // answers.cc
void AddJsonTarget(std::vector<TargetEntry>* out);       // json_call.cc
void AddTensorTargets(std::vector<TargetEntry>* out);    // tensor_files.cc
void AddSettingsTargets(std::vector<TargetEntry>* out);  // settings.cc
void AddSnapshotTarget(std::vector<TargetEntry>* out);   // snapshots.cc
void AddStartTarget(std::vector<TargetEntry>* out);      // start_files.cc
void AddTextsTarget(std::vector<TargetEntry>* out);      // texts.cc

}  // namespace seine::fuzz

#endif  // SEINE_TESTS_FUZZ_TARGETS_TARGETS_H_
