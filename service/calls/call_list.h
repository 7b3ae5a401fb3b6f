// The wire contract's calls: declared (calls.h), served and checked for roles (transport/rpc_methods.h) by this list.
#ifndef SEINE_SERVICE_CALLS_CALL_LIST_H_
#define SEINE_SERVICE_CALLS_CALL_LIST_H_

// CALL(service, name, weight, role that the caller must have at least, whether it changes anything). kLight: answered
// where it is received, it takes microseconds and waits for nothing; kHeavy: it goes through the executor's queue.
// clang-format off
#define SEINE_FOR_EACH_CALL(CALL) \
  CALL(IndexService, CreateIndex, kHeavy, kAdmin, true) /* may read a profile */ \
  CALL(IndexService, GetIndex, kLight, kReader, false) \
  CALL(IndexService, ListIndexes, kHeavy, kReader, false) \
  CALL(IndexService, DeleteIndex, kHeavy, kAdmin, true) /* gives back what may be gigabytes */ \
  CALL(SequenceService, CreateSequence, kHeavy, kWriter, true) \
  CALL(SequenceService, GetSequence, kLight, kReader, false) \
  CALL(SequenceService, ListSequences, kHeavy, kReader, false) \
  CALL(SequenceService, DeleteSequence, kHeavy, kWriter, true) \
  CALL(SequenceService, ForkSequence, kHeavy, kWriter, true) \
  CALL(SequenceService, TruncateSequence, kHeavy, kWriter, true) \
  CALL(SequenceService, Snapshot, kHeavy, kWriter, true) /* a file, where there may have been another */ \
  CALL(SequenceService, Restore, kHeavy, kWriter, true) \
  CALL(SequenceService, ReleaseBase, kHeavy, kWriter, true) /* gives back what may be gigabytes */ \
  CALL(RetrievalService, Append, kHeavy, kWriter, true) \
  CALL(RetrievalService, Retrieve, kHeavy, kReader, false) \
  CALL(RetrievalService, Attend, kHeavy, kReader, false) \
  CALL(RetrievalService, Gather, kHeavy, kReader, false) \
  CALL(EvictionService, Score, kHeavy, kReader, false) \
  CALL(EvictionService, Evict, kHeavy, kWriter, true) \
  CALL(EvictionService, Diagnose, kHeavy, kReader, false) \
  CALL(SubspaceService, GetBasis, kHeavy, kReader, false) \
  CALL(SubspaceService, LoadBasis, kHeavy, kWriter, true) \
  CALL(SubspaceService, CalibrateBasis, kHeavy, kReader, false) \
  CALL(SubspaceService, Reconstruct, kHeavy, kReader, false) \
  CALL(SharedMemoryService, OpenChannel, kLight, kReader, false) \
  CALL(AdminService, GetServerInfo, kLight, kReader, false) \
  CALL(AdminService, DescribeHead, kLight, kReader, false) \
  CALL(AdminService, MeasureProfile, kHeavy, kReader, false) \
  CALL(AdminService, CompareExact, kHeavy, kReader, false) \
  CALL(AdminService, DescribeStep, kHeavy, kReader, false) \
  CALL(AdminService, SetFamilyState, kHeavy, kAdmin, true) /* waits for changes that have begun */ \
  CALL(AdminService, ListFamilyStates, kHeavy, kReader, false) \
  CALL(AdminService, SetDraining, kLight, kAdmin, true) \
  CALL(AdminService, ListServers, kHeavy, kReader, false) \
  CALL(AdminService, GetMetrics, kLight, kAdmin, false) /* a server that is busy is looked at most */
// clang-format on

#endif  // SEINE_SERVICE_CALLS_CALL_LIST_H_
