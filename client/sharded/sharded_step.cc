// What a layer of a sharded sequence is asked (sharded_sequence.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sharded/shard_error.h"
#include "client/sharded/sharded_sequence.h"
#include "profile/field_error.h"

namespace seine::client {
namespace {

bool IsEmpty(const DecodeStep& step) { return step.appends.empty() && step.items.empty(); }

}  // namespace

absl::Status ShardedSequence::CheckQuestion(int layer, int64_t end, const v1::Selector& selector) const {
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  if (layers_[layer].ends > std::max(layers_[layer].tokens, end)) {
    return absl::FailedPreconditionError(absl::StrCat("layer ", layer, " has gaps: append again from position ",
                                                      layers_[layer].tokens, ", or truncate to it"));
  }
  if (selector.has_top_k() && selector.top_k() < 1) return BadField("selector.top_k", "must be at least 1");
  if (selector.has_mass_p()) return BadField("selector.mass_p", "shares of a shard's mass are none of the whole's");
  if (selector.scope() == v1::SCOPE_PER_KV_HEAD && selector.gqa_reduce() != v1::GQA_REDUCE_MAX &&
      selector.gqa_reduce() != v1::GQA_REDUCE_MEAN) {
    return BadField("selector.gqa_reduce", "must be MAX or MEAN: other scores of different shards do not compare");
  }
  return absl::OkStatus();
}

WholeLayer ShardedSequence::Whole(const Question& question) const {
  WholeLayer whole;
  whole.num_tokens = question.tokens;
  whole.zone_begin = zones_.sink;
  whole.zone_end = zones_.ZoneEnd(question.tokens);
  whole.num_sets =
      question.selector.scope() == v1::SCOPE_PER_KV_HEAD ? geometry_.num_kv_heads() : geometry_.num_q_heads();
  whole.exact = question.selector.exact();
  return whole;
}

ShardedSequence::Steps ShardedSequence::StepsOf(const Question& question) const {
  const WholeLayer whole = Whole(question);
  const bool dense = whole.zone_begin == whole.zone_end;
  int searched = 0;
  for (int s = 0; s < num_shards(); ++s) {
    searched += map_.RowsBefore(s, whole.zone_end) > map_.RowsBefore(s, whole.zone_begin) ? 1 : 0;
  }
  const int top_k = TopK(question);
  Steps steps(num_shards());
  for (int s = 0; s < num_shards(); ++s) {
    if (s > 0 && map_.RowsBefore(s, question.tokens) == 0) continue;
    RetrieveItem item = {handles_[s], question.layer, question.queries};
    item.dense_from = dense ? 0 : map_.RowsBefore(s, whole.zone_end);
    steps[s].items = {std::move(item)};
    steps[s].selector = question.selector;
    const bool all = options_.full_top_k || ChoosesFirst(question);
    steps[s].selector.set_top_k(all ? top_k : ShardTopK(top_k, std::max(searched, 1)));
    if (steps[s].selector.scope() == v1::SCOPE_UNSPECIFIED) steps[s].selector.set_scope(v1::SCOPE_PER_Q_HEAD);
    steps[s].attention = question.attention;
  }
  return steps;
}

ShardedSequence::Errors ShardedSequence::Ask(const Steps& steps, Answers* answers) {
  answers->assign(num_shards(), {});
  std::vector<absl::Status> broken(num_shards());  // streams that ended
  for (int s = 0; s < num_shards(); ++s) {
    if (IsEmpty(steps[s])) continue;
    if (streams_[s] == nullptr) {
      auto opened = shards_[s]->OpenDecodeStream(options_.transport);
      broken[s] = opened.status();
      if (opened.ok()) streams_[s] = *std::move(opened);
    }
    if (broken[s].ok()) broken[s] = streams_[s]->Write(steps[s]);
  }
  Errors errors;
  for (int s = 0; s < num_shards(); ++s) {
    if (IsEmpty(steps[s])) continue;
    DecodeAnswer& answer = (*answers)[s];
    if (broken[s].ok()) broken[s] = streams_[s]->Read(&answer);
    if (!broken[s].ok()) streams_[s].reset();  // the next step opens another
    const absl::Status whole_step = broken[s].ok() ? answer.status : broken[s];
    if (!steps[s].appends.empty()) errors.append.Update(OfShard(s, whole_step));
    for (const absl::Status& status : answer.append_status) errors.append.Update(OfShard(s, status));
    errors.question.Update(OfShard(s, whole_step));
    for (const Answer& one : answer.answers) errors.question.Update(OfShard(s, one.status));
    for (const Attended& one : answer.attended) errors.question.Update(OfShard(s, one.status));
  }
  return errors;
}

Answer ShardedSequence::Merged(const Question& question, const Answers& answers) const {
  std::vector<FromShard<Answer>> parts;
  for (int s = 0; s < num_shards(); ++s) {
    if (!answers[s].answers.empty()) parts.push_back({s, answers[s].answers[0]});
  }
  return MergeAnswers(parts, map_, TopK(question), Whole(question));
}

Attended ShardedSequence::MergedAttention(const Question& question, const Answers& answers) const {
  std::vector<FromShard<Attended>> parts;
  std::vector<FromShard<Answer>> selected;
  for (int s = 0; s < num_shards(); ++s) {
    if (answers[s].attended.empty()) continue;
    parts.push_back({s, answers[s].attended[0]});
    selected.push_back({s, answers[s].attended[0].selected});
  }
  Attended out = MergeAttended(parts, Whole(question));
  if (question.attention->with_positions()) out.selected = JoinAnswers(selected, map_, Whole(question));
  return out;
}

absl::StatusOr<Answer> ShardedSequence::Retrieve(int layer, const ConstTensor& queries, const v1::Selector& selector) {
  if (absl::Status s = CheckQuestion(layer, 0, selector); !s.ok()) return s;
  Question question = {layer, layers_[layer].tokens, queries, selector};
  question.selector.set_with_scores(true);
  Answers answers;
  const Errors errors = Ask(StepsOf(question), &answers);
  if (!errors.question.ok()) return errors.question;
  Answer out = Merged(question, answers);
  if (!selector.with_scores()) out.scores.clear();
  return out;
}

absl::StatusOr<Attended> ShardedSequence::Attend(int layer, const ConstTensor& queries, const v1::Selector& selector,
                                                 const v1::Attention& attention) {
  return Step({.layer = layer, .queries = queries, .selector = selector, .attention = attention});
}

// Where the whole's sets are chosen first, a question is asked in two: for them, then for attention over them.
absl::StatusOr<Attended> ShardedSequence::Step(const ShardedStep& step) {
  const bool appending = step.keys.data != nullptr;
  if (absl::Status s = CheckLayer(step.layer); !s.ok()) return s;
  if (step.queries.shape.size() != 2)
    return BadField("queries", "must be [num_q_heads, head_dim]: no shard knows a prompt's positions");
  Appends appends(num_shards());
  Question question = {step.layer, layers_[step.layer].tokens, step.queries, step.selector, step.attention};
  int64_t end = 0;
  if (appending) {
    absl::StatusOr<Appends> split = Split(step.layer, step.position, step.keys, step.values);
    if (!split.ok()) return split.status();
    appends = *std::move(split);
    end = step.position + step.keys.shape[0];
    question.tokens = std::max(question.tokens, end);
  }
  if (absl::Status s = CheckQuestion(step.layer, end, step.selector); !s.ok()) return s;
  const bool choose = ChoosesFirst(question);
  if (choose) question.attention.reset(), question.selector.set_with_scores(true);
  Steps steps = StepsOf(question);
  for (int s = 0; s < num_shards(); ++s) steps[s].appends = std::move(appends[s]);
  Answers answers;
  const Errors errors = Ask(steps, &answers);
  if (appending) {
    absl::Status s = Appended(step.layer, step.position, step.keys.shape[0], errors.append);
    if (!s.ok()) return s;
  }
  if (!errors.question.ok()) return errors.question;
  if (!choose) return MergedAttention(question, answers);
  Answer chosen = Merged(question, answers);
  question.attention = step.attention;
  absl::StatusOr<Attended> out = AttendChosen(question, chosen);
  if (!out.ok() || !step.attention.with_positions()) return out;
  if (!step.selector.with_scores()) chosen.scores.clear();
  out->selected = std::move(chosen);
  return out;
}

absl::StatusOr<Attended> ShardedSequence::AttendChosen(const Question& question, const Answer& chosen) {
  Question given = question;
  given.attention->set_with_positions(false);
  // What is usual where a set was searched, for the shards search no more.
  const bool own_sets = question.selector.scope() != v1::SCOPE_PER_KV_HEAD;
  if (!given.attention->has_tail()) given.attention->set_tail(own_sets && !question.selector.exact());
  Steps steps = StepsOf(given);
  std::vector<std::vector<int32_t>> rows(num_shards());
  for (int s = 0; s < num_shards(); ++s) {
    if (steps[s].items.empty()) continue;
    int width = 0;
    rows[s] = RowsOfShard(chosen, map_, s, &width);
    steps[s].items[0].positions = {rows[s].data(), DType::kInt32, {chosen.num_sets, width}};
  }
  Answers answers;
  const Errors errors = Ask(steps, &answers);
  if (!errors.question.ok()) return errors.question;
  return MergedAttention(given, answers);
}

}  // namespace seine::client
