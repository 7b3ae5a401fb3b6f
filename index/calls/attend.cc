// Attention of a batch over what its search has chosen and what is dense: one task for each (item, KV head), by the
// device that searches, which reads keys, values and the means of windows where they lie, else on the host's threads.
#include <cmath>
#include <thread>
#include <utility>

#include "index/calls/index_impl.h"
#include "index/quality/monitor.h"
#include "index/retrieval/attend_prompt.h"
#include "index/retrieval/search_batch.h"
#include "index/stop_status.h"
#include "kernels/host.h"
#include "kernels/stop.h"
#include "profile/field_error.h"

namespace seine {

namespace {

// Below this much work a wake-up of other threads (20-50 us) costs more than it saves.
constexpr double kWorthSharingNs = 60e3;
constexpr double kRowNs = 15;  // a key and a value of 256 bytes, for one query head

// One KV head of a target.
struct HeadTask {
  host::AttentionTask attention;
  host::AttendedRows paid;  // where the index adds it up
  AttendAnswer* answer = nullptr;
  int kv_head = 0;
  int64_t attended = 0;
  AttentionTimes times;
};

SearchParams WithScale(const SearchParams& params, float scale, int head_dim) {
  SearchParams scaled = params;
  if (scale > 0) scaled.softmax_scale = scale;
  if (scaled.softmax_scale == 0) scaled.softmax_scale = 1 / std::sqrt(static_cast<float>(head_dim));
  return scaled;
}

HeadTask TaskOf(const SearchBatch& batch, const Geometry& g, const SearchParams& params, bool tail, bool on_device,
                size_t target, int kv_head) {
  HeadTask task;
  task.kv_head = kv_head;
  host::AttentionTask& a = task.attention;
  const SearchBatch::Target& of = batch.targets()[target];
  a.queries = QueriesOf(*of.item) + int64_t{kv_head} * g.group() * g.head_dim;
  a.group = g.group();
  a.scale = params.softmax_scale;
  const bool searched = batch.Searched(target, kv_head);
  of.layer().FillAttention(kv_head, batch.ZoneKeys(target, kv_head), tail, on_device, &a);
  if (!searched) return task;
  const SearchOutput& found = batch.Found(target, kv_head);
  a.sets = &found.positions;
  // A set of a query head's own comes with that head's exact logits, as keys are stored.
  if (params.scope == Scope::kPerQHead && of.item->positions == nullptr) a.logits = &found.scores;
  return task;
}

double WorkNs(const host::AttentionTask& task) {
  double rows = static_cast<double>(task.num_windows);
  for (const host::PlaceRun& run : task.dense) rows += static_cast<double>(run.end - run.begin);
  rows *= task.group;
  if (task.sets != nullptr) {
    for (const auto& set : *task.sets) rows += static_cast<double>(set.size());
  }
  return rows * kRowNs;
}

float* OutputOf(const Geometry& g, const HeadTask& task) {
  return task.answer->output.data() + int64_t{task.kv_head} * g.group() * g.head_dim;
}
float* LogSumExpOf(const Geometry& g, const HeadTask& task) {
  return task.answer->log_sum_exp.data() + int64_t{task.kv_head} * g.group();
}

void TakeCounts(const std::vector<HeadTask>& tasks) {
  for (const HeadTask& task : tasks) {
    task.answer->attended_tokens += task.attended;
    task.answer->times.Add(task.times);
    task.answer->tail = task.answer->tail || task.attention.num_windows > 0;
  }
}

// Searches a batch that is prepared and attends, [targets][num_kv_heads] tasks.
absl::Status AttendOn(DeviceAttention* device, const Geometry& g, SearchBatch* batch, std::vector<HeadTask>* tasks) {
  std::vector<AttendTask> of_device(tasks->size());
  for (size_t i = 0; i < tasks->size(); ++i) {
    HeadTask& task = (*tasks)[i];
    of_device[i].attention = task.attention;
    of_device[i].search = batch->SearchOf(i / g.num_kv_heads, task.kv_head);
    const DeviceTensors* const theirs = batch->targets()[i / g.num_kv_heads].item->device;
    if (theirs != nullptr) {
      of_device[i].device_queries = true;
      of_device[i].device_output = theirs->output != nullptr;
      of_device[i].stream = theirs->stream;
    }
    const int64_t first = int64_t{task.kv_head} * g.group();
    of_device[i].output = of_device[i].device_output ? theirs->output + first * g.head_dim : OutputOf(g, task);
    of_device[i].log_sum_exp = of_device[i].device_output ? theirs->log_sum_exp + first : LogSumExpOf(g, task);
    task.answer->on_device = true;
  }
  if (absl::Status s = batch->Attend(device, &of_device); !s.ok()) return s;
  for (size_t i = 0; i < tasks->size(); ++i) (*tasks)[i].attended = of_device[i].attended;
  TakeCounts(*tasks);
  return absl::OkStatus();
}

// Every head's output, log-sum-exp and counts into its answer.
void AttendAll(const Geometry& g, Backend* backend, std::vector<HeadTask>* tasks, const ProgressCallback& progress) {
  double work = 0;
  for (const HeadTask& task : *tasks) work += WorkNs(task.attention);
  const std::thread::id caller = std::this_thread::get_id();
  const int count = static_cast<int>(tasks->size());
  const auto attend = [&](int i) {
    if (progress && std::this_thread::get_id() == caller) progress(count - i);
    HeadTask& task = (*tasks)[i];
    task.attended = host::Attend(task.attention, OutputOf(g, task), LogSumExpOf(g, task), &task.times,
                                 i + 1 < count ? &(*tasks)[i + 1].attention : nullptr);
  };
  if (work > kWorthSharingNs) {
    backend->Run(count, attend);
  } else {
    for (int i = 0; i < count && !StopRequested(); ++i) attend(i);
  }
  TakeCounts(*tasks);
}

}  // namespace

absl::StatusOr<std::vector<AttendAnswer>> Index::Attend(absl::Span<const RetrieveItem> items,
                                                        const SearchParams& params, const AttentionParams& attention,
                                                        const ProgressCallback& progress) const {
  const auto checked_params = Check(params);
  if (!checked_params.ok()) return checked_params.status();
  const auto checked_attention = Check(attention);
  if (!checked_attention.ok()) return checked_attention.status();
  return Attend(items, *checked_params, *checked_attention, progress);
}

absl::StatusOr<std::vector<AttendAnswer>> IndexImpl::Attend(absl::Span<const RetrieveItem> items,
                                                            const Checked<SearchParams>& params,
                                                            const Checked<AttentionParams>& attention,
                                                            const ProgressCallback& progress) const {
  if (absl::Status s = CheckOwn(params); !s.ok()) return s;
  if (absl::Status s = CheckOwn(attention); !s.ok()) return s;
  const Geometry& g = context_.config.geometry;
  const SearchParams scaled = WithScale(*params, attention->scale, g.head_dim);
  const bool usual_tail = params->scope == Scope::kPerQHead && params->method == Method::kIndex;
  std::vector<AttendAnswer> answers(items.size());
  SearchBatch batch(&context_);
  std::vector<std::pair<SequenceRef, size_t>> prompts;  // and their places
  for (size_t i = 0; i < items.size(); ++i) {
    absl::StatusOr<SequenceRef> sequence = CheckItem(items[i]);
    answers[i].status = sequence.status();
    if (sequence.ok() && items[i].positions != nullptr && attention->with_positions) {
      answers[i].status = BadField("positions", "given, so that attention.with_positions has nothing to tell");
    }
    const bool of_prompt = items[i].prompt_tokens > 0;
    if (sequence.ok()) {
      const int64_t tokens = (*sequence)->layers[items[i].layer]->totals().length;
      LayerGate* const gate =
          items[i].device != nullptr ? nullptr : context_.GateOf(items[i], scaled, *attention, tokens);
      if (gate != nullptr && gate->Exact()) {
        if (absl::Status s = reencoder_.FinishDue(*sequence, items[i].layer); !s.ok()) return s;
        prompts.push_back({*std::move(sequence), i});
        continue;
      }
    }
    if (sequence.ok() && of_prompt) {
      answers[i].status = CheckPromptItem(items[i], *attention, context_.config);
    }
    if (!answers[i].status.ok()) continue;
    if (of_prompt) {
      prompts.push_back({*std::move(sequence), i});
      continue;
    }
    if (absl::Status s = reencoder_.FinishDue(*sequence, items[i].layer); !s.ok()) return s;
    batch.Add(*std::move(sequence), &items[i], i);
  }
  DeviceAttention* const device = context_.attends_on_device ? context_.backend->attention() : nullptr;
  if (absl::Status s = device != nullptr ? batch.Prepare(scaled) : batch.Search(scaled, {}); !s.ok()) return s;
  for (const SearchBatch::Refused& refused : batch.refused()) answers[refused.place].status = refused.status;
  std::vector<HeadTask> tasks;
  tasks.reserve(batch.targets().size() * g.num_kv_heads);
  for (size_t t = 0; t < batch.targets().size(); ++t) {
    AttendAnswer& answer = answers[batch.targets()[t].place];
    answer.path = batch.ModeOf(t);
    answer.codes_stale = batch.CodesStale(t);
    answer.num_tokens = batch.targets()[t].layer().length();
    const DeviceTensors* const theirs = batch.targets()[t].item->device;
    if (theirs == nullptr || theirs->output == nullptr) {
      answer.output.resize(int64_t{g.num_q_heads} * g.head_dim);
      answer.log_sum_exp.resize(g.num_q_heads);
    }
    for (int h = 0; h < g.num_kv_heads; ++h) {
      const bool searches = batch.targets()[t].item->positions == nullptr;
      tasks.push_back(
          TaskOf(batch, g, scaled, attention->tail.value_or(usual_tail && searches), device != nullptr, t, h));
      tasks.back().answer = &answer;
      tasks.back().attention.softcap = attention->softcap;
    }
  }
  if (context_.eviction.accumulates()) {
    for (HeadTask& task : tasks) task.attention.attended = &task.paid;
  }
  {
    const StageClock clock(context_.counts.get(), Stage::kAttend);
    if (device == nullptr) {
      AttendAll(g, context_.backend, &tasks, progress);
    } else if (absl::Status s = AttendOn(device, g, &batch, &tasks); !s.ok()) {
      return s;
    }
  }
  if (context_.own_counts != nullptr) {
    int64_t attended = 0;
    for (const AttendAnswer& answer : answers) attended += answer.attended_tokens;
    context_.own_counts->Attended(attended);
  }
  if (absl::Status s = StopStatus(); !s.ok()) return s;
  for (size_t t = 0; t < batch.targets().size() && context_.eviction.accumulates(); ++t) {
    std::vector<host::AttendedRows> heads;
    for (int h = 0; h < g.num_kv_heads; ++h) heads.push_back(std::move(tasks[t * g.num_kv_heads + h].paid));
    batch.targets()[t].layer().Accumulate(heads);
  }
  if (context_.quality != nullptr) context_.quality->Sample(batch, &*attention);
  for (size_t t = 0; t < batch.targets().size() && attention->with_positions; ++t) {
    batch.ReadAnswer(t, &answers[batch.targets()[t].place].selected);
  }
  batch.KeepQueries();
  batch.Unlock();
  for (const SearchBatch::Target& target : batch.targets()) {
    const AttendAnswer& answer = answers[target.place];
    if (answer.path != SearchMode::kDense) RecordQueries(target.sequence, *target.item, answer.num_tokens);
  }
  for (const auto& [sequence, place] : prompts) {
    const StageClock clock(context_.counts.get(), Stage::kAttend);
    const RetrieveItem& item = items[place];
    const Layer& layer = *sequence->layers[item.layer];
    if (absl::Status s = AttendPromptItem(context_, layer, item, scaled.softmax_scale, *attention, &answers[place]);
        !s.ok()) {
      return s;
    }
    if (context_.own_counts != nullptr) context_.own_counts->Attended(answers[place].attended_tokens);
    if (item.prompt_tokens == 0) RecordQueries(sequence, item, answers[place].num_tokens);
  }
  return answers;
}

}  // namespace seine
