#include "kernels/backends/cuda/low_rank_calls.h"

#include <algorithm>
#include <vector>

#include "kernels/ops/learn/oja_items.h"
#include "kernels/ops/learn/oja_rule.h"
#include "kernels/ops/low_rank/low_rank_items.h"
#include "kernels/ops/matrix/matrix.h"

namespace seine::cuda {
namespace {

using Error = Device::Error;

constexpr int64_t kMostRows = 1 << 15;  // of a batch
constexpr size_t kMostItems = 4096;
static_assert(kMostItems <= kMostGridRows);

// Rows [first, first + count) of one of the tasks.
struct Piece {
  int task;
  int64_t first, count;
};

// batch(pieces) for pieces of tasks, at most kMostRows rows of them together; a task comes in multiples of unit(task)
// rows, in order, no two in one batch.
template <typename Task, typename Unit, typename Batch>
Error InPieces(const Task* tasks, int count, Unit unit, Batch batch) {
  std::vector<Piece> pieces;
  int64_t rows = 0;
  Error error = Device::kNoError;
  const auto flush = [&] {
    if (!pieces.empty()) error = batch(pieces);
    pieces.clear();
    rows = 0;
  };
  for (int i = 0; i < count; ++i) {
    for (int64_t first = 0; first < tasks[i].count && error == Device::kNoError;) {
      const int64_t room = (kMostRows - rows) / unit(tasks[i]) * unit(tasks[i]);
      if (room == 0 || pieces.size() == kMostItems) {
        flush();
        continue;
      }
      const int64_t now = std::min(room, tasks[i].count - first);
      pieces.push_back({i, first, now});
      rows += now;
      first += now;
    }
  }
  if (error == Device::kNoError) flush();
  return error;
}

size_t BasisFloats(const ProjectTask& t) { return static_cast<size_t>(t.head_dim) * cpu::PaddedColumns(t.rank); }
size_t CodeBytes(const ProjectTask& t, int64_t rows) { return rows * t.rank * SizeOf(t.dtype); }
size_t ResidualBytes(const ProjectTask& t, int64_t rows) {
  return t.residuals == nullptr ? 0 : rows * t.head_dim * sizeof(float);
}

Error ProjectBatch(const ProjectTask* tasks, const std::vector<Piece>& pieces, StreamContext* context) {
  size_t bytes = ViewWriter::Room(pieces.size() * sizeof(ProjectItem)), out_bytes = 0;
  for (const Piece& p : pieces) {
    const ProjectTask& t = tasks[p.task];
    bytes += ViewWriter::Room(BasisFloats(t) * sizeof(float)) + ViewWriter::Room(p.count * t.head_dim * sizeof(float));
    out_bytes += ViewWriter::Room(CodeBytes(t, p.count)) + ViewWriter::Room(ResidualBytes(t, p.count));
  }
  ViewWriter views(context);
  Error error = views.Reserve(bytes);
  if (error == Device::kNoError) error = context->workspace.Reserve(out_bytes);
  if (error == Device::kNoError) error = context->answers.Reserve(out_bytes);
  if (error != Device::kNoError) return error;
  ProjectArgs args;
  std::vector<ProjectItem> items;
  uint8_t* out = context->workspace.data();
  for (const Piece& p : pieces) {
    const ProjectTask& t = tasks[p.task];
    ProjectItem& item = items.emplace_back();
    item.basis = views.Put(t.basis, BasisFloats(t));
    item.head_dim = t.head_dim;
    item.rank = t.rank;
    item.rows = views.Put(t.rows + p.first * t.head_dim, p.count * t.head_dim);
    item.count = Fit<int32_t>(p.count);
    item.dtype = t.dtype;
    item.codes = out;
    out += ViewWriter::Room(CodeBytes(t, p.count));
    if (t.residuals != nullptr) item.residuals = reinterpret_cast<float*>(out);
    out += ViewWriter::Room(ResidualBytes(t, p.count));
    args.most_rows = std::max(args.most_rows, item.count);
    args.most_dim = std::max(args.most_dim, item.head_dim);
  }
  args.num_items = Fit<int32_t>(items.size());
  args.items = views.Put(items.data(), items.size());
  error = views.Send();
  if (error == Device::kNoError) error = context->device->Launch(args, context->stream);
  if (error == Device::kNoError) {
    error = context->Receive(context->answers.data(), context->workspace.data(), out_bytes);
  }
  error = context->Finish(error);
  if (error != Device::kNoError) return error;
  const uint8_t* answer = context->answers.data();
  for (const Piece& p : pieces) {
    const ProjectTask& t = tasks[p.task];
    memcpy(t.codes + CodeBytes(t, p.first), answer, CodeBytes(t, p.count));
    answer += ViewWriter::Room(CodeBytes(t, p.count));
    if (t.residuals == nullptr) continue;
    memcpy(t.residuals + p.first * t.head_dim, answer, ResidualBytes(t, p.count));
    answer += ViewWriter::Room(ResidualBytes(t, p.count));
  }
  return Device::kNoError;
}

// What a piece's views take in the context.
size_t ViewBytes(const RebuildTask& t, const Piece& p) {
  const size_t places = ViewWriter::Room(p.count * sizeof(int32_t));
  if (t.rows.rope.inv_freq == nullptr) return ViewWriter::Room(t.rows.num_runs * sizeof(LowRankRun)) + places;
  return ViewWriter::Room(t.rows.num_runs * sizeof(LowRankRun)) + 2 * places +
         ViewWriter::Room(t.rows.head_dim / 2 * sizeof(double));
}

Error RebuildBatch(const RebuildTask* tasks, const std::vector<Piece>& pieces, StreamContext* context) {
  size_t bytes = ViewWriter::Room(pieces.size() * sizeof(RebuildItem)), out_floats = 0;
  for (const Piece& p : pieces) {
    bytes += ViewBytes(tasks[p.task], p);
    out_floats += p.count * tasks[p.task].rows.head_dim;
  }
  ViewWriter views(context);
  Error error = views.Reserve(bytes);
  if (error == Device::kNoError) error = context->workspace.Reserve(out_floats * sizeof(float));
  if (error != Device::kNoError) return error;
  RebuildArgs args;
  std::vector<RebuildItem> items;
  auto* out = reinterpret_cast<float*>(context->workspace.data());
  for (const Piece& p : pieces) {
    const RebuildTask& t = tasks[p.task];
    RebuildItem& item = items.emplace_back();
    item.rows = t.rows;
    item.rows.runs = views.Put(t.rows.runs, t.rows.num_runs);
    item.places = views.Put(t.places + p.first, p.count);
    if (t.rows.rope.inv_freq != nullptr) {
      item.rows.rope.inv_freq = views.Put(t.rows.rope.inv_freq, t.rows.head_dim / 2);
      item.positions = views.Put(t.positions + p.first, p.count);
    }
    item.count = Fit<int32_t>(p.count);
    item.out = out;
    out += p.count * t.rows.head_dim;
    args.most_rows = std::max(args.most_rows, item.count);
    args.most_dim = std::max(args.most_dim, item.rows.head_dim);
  }
  args.num_items = Fit<int32_t>(items.size());
  args.items = views.Put(items.data(), items.size());
  error = views.Send();
  if (error == Device::kNoError) error = context->device->Launch(args, context->stream);
  for (size_t i = 0; i < pieces.size() && error == Device::kNoError; ++i) {
    const RebuildTask& t = tasks[pieces[i].task];
    const size_t row = t.rows.head_dim * sizeof(float);
    error = context->Receive(t.out + pieces[i].first * t.rows.head_dim, items[i].out, pieces[i].count * row);
  }
  return context->Finish(error);
}

size_t BasisBytes(const LearnTask& t) { return static_cast<size_t>(t.head_dim) * OjaColumns(t.rank) * sizeof(float); }
size_t StateBytes(const LearnTask& t) { return ViewWriter::Room(BasisBytes(t)) + ViewWriter::Room(sizeof(OjaStats)); }

// Bases and statistics come first of all that is brought to the device, change there, and are brought back.
Error LearnBatch(const LearnTask* tasks, const std::vector<Piece>& pieces, StreamContext* context) {
  size_t bytes = ViewWriter::Room(pieces.size() * sizeof(LearnItem)), state_bytes = 0, scratch_bytes = 0;
  const auto scratch_of = [](const LearnTask& t) {
    return ViewWriter::Room(OjaScratch::Floats(t.head_dim, t.rank, t.options.interval) * sizeof(float));
  };
  for (const Piece& p : pieces) {
    const LearnTask& t = tasks[p.task];
    state_bytes += StateBytes(t);
    bytes += StateBytes(t) + ViewWriter::Room(p.count * t.head_dim * sizeof(float));
    scratch_bytes += scratch_of(t);
  }
  ViewWriter views(context);
  Error error = views.Reserve(bytes);
  if (error == Device::kNoError) error = context->workspace.Reserve(scratch_bytes);
  if (error == Device::kNoError) error = context->answers.Reserve(state_bytes);
  if (error != Device::kNoError) return error;
  std::vector<LearnItem> items;
  uint8_t* scratch = context->workspace.data();
  for (const Piece& p : pieces) {
    const LearnTask& t = tasks[p.task];
    LearnItem& item = items.emplace_back();
    item.task = t;
    item.task.basis = const_cast<float*>(views.Put(t.basis, BasisBytes(t) / sizeof(float)));
    item.task.stats = const_cast<OjaStats*>(views.Put(t.stats, 1));
    item.task.count = p.count;
    item.scratch = reinterpret_cast<float*>(scratch);
    scratch += scratch_of(t);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const LearnTask& t = tasks[pieces[i].task];
    items[i].task.rows = views.Put(t.rows + pieces[i].first * t.head_dim, pieces[i].count * t.head_dim);
  }
  const LearnArgs args = {views.Put(items.data(), items.size()), Fit<int32_t>(items.size())};
  error = views.Send();
  if (error == Device::kNoError) error = context->device->Launch(args, context->stream);
  if (error == Device::kNoError) {
    error = context->Receive(context->answers.data(), context->device_views.data(), state_bytes);
  }
  error = context->Finish(error);
  if (error != Device::kNoError) return error;
  const uint8_t* answer = context->answers.data();
  for (const Piece& p : pieces) {
    const LearnTask& t = tasks[p.task];
    memcpy(t.basis, answer, BasisBytes(t));
    memcpy(t.stats, answer + ViewWriter::Room(BasisBytes(t)), sizeof(OjaStats));
    answer += StateBytes(t);
  }
  return Device::kNoError;
}

}  // namespace

Error ProjectOnDevice(const ProjectTask* tasks, int count, StreamContext* context) {
  return InPieces(
      tasks, count, [](const ProjectTask&) { return 1; },
      [&](const std::vector<Piece>& pieces) { return ProjectBatch(tasks, pieces, context); });
}

Error RebuildOnDevice(const RebuildTask* tasks, int count, StreamContext* context) {
  return InPieces(
      tasks, count, [](const RebuildTask&) { return 1; },
      [&](const std::vector<Piece>& pieces) { return RebuildBatch(tasks, pieces, context); });
}

Error LearnOnDevice(const LearnTask* tasks, int count, StreamContext* context) {
  return InPieces(
      tasks, count, [](const LearnTask& t) { return t.options.interval; },
      [&](const std::vector<Piece>& pieces) { return LearnBatch(tasks, pieces, context); });
}

}  // namespace seine::cuda
