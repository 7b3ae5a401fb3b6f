// Attention on the device over what it has just found, against the host's: within 1e-5, sets bit for bit. Queries and
// outputs lie in the host's memory or on the device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/ops/attend/attention.h"
#include "tests/device/draws.h"
#include "tests/device/same.h"
#include "tests/device/suite.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

constexpr double kWithin = 1e-5;

// Parts of an item that are the same on both backends.
struct Drawn {
  Drawn(Rng* rng, const SuiteOptions& options) {
    dim = DrawDim(rng, options);
    codec = DrawCodec(rng, options, dim);
    const int unit = std::max(kWindowTokens, codec->layout().centre_window);
    zone = (options.keys > 0 ? options.keys : Pick(rng, 1, options.small ? 700 : 9000)) / unit * unit + unit;
    group = options.group > 0 ? options.group : Pick(rng, 1, 12);
    local = Pick(rng, 0, 400);
    params = DrawParams(rng, options, false);
    params.softmax_scale = 1 / std::sqrt(static_cast<float>(dim));
    params.with_candidates = false;
    searched = Pick(rng, 0, 4) > 0;
    on_device = Pick(rng, 0, 1) == 1;
    tail = Pick(rng, 0, 1) == 1;
    softcap = Pick(rng, 0, 3) == 0 ? 5.0f : 0.0f;
    keys = Keys(zone + local, dim, (*rng)());
    values = Gaussian(static_cast<size_t>(zone + local) * dim, (*rng)());
    queries = Gaussian(static_cast<size_t>(group) * dim, (*rng)());
    if (searched) return;
    given.resize(group);  // positions that come with the item
    for (auto& set : given) {
      for (int place = Pick(rng, 0, 60); place < zone; place += Pick(rng, 1, 90)) set.push_back(place);
    }
  }
  std::string Shape(uint64_t seed) const {
    return std::to_string(zone) + " keys, " + std::to_string(local) + " dense, dim " + std::to_string(dim) +
           ", group " + std::to_string(group) + ", top_k " + std::to_string(params.top_k) +
           (searched ? "" : ", positions given") + (tail ? ", tail" : "") + (softcap > 0 ? ", softcap" : "") +
           (on_device ? ", tensors on the device" : "") + "; --seed " + std::to_string(seed);
  }

  std::shared_ptr<const Codec> codec;
  int dim, zone, group, local;
  SearchParams params;
  bool searched, on_device, tail;
  float softcap;
  std::vector<float> keys, values, queries;
  std::vector<std::vector<int32_t>> given;
};

// The item in a backend's memory.
struct Laid {
  Laid(Backend* backend, const Drawn& d)
      : keys(StoredKeys(backend, d.keys)),
        values(StoredKeys(backend, d.values)),
        zone(backend, d.codec, d.zone, keys.data()) {
    const size_t record = WindowMeansBytes(d.dim);
    means = backend->Allocate(d.zone / kWindowTokens * record, MemorySpace::kStore);
    done = keys && values && means && zone.codes && zone.Encode() == Outcome::kDone;
    for (int w = 0; done && w < d.zone / kWindowTokens; ++w) {
      const size_t first = static_cast<size_t>(w) * kWindowTokens * d.dim;
      EncodeWindowMeans(&d.keys[first], &d.values[first], d.dim, means.data() + w * record);
    }
    key_chunk = keys.data(), value_chunk = values.data(), mean_chunk = means.data();
    const int rows = d.zone + d.local;
    attention.queries = d.queries.data();
    attention.group = d.group;
    attention.scale = d.params.softmax_scale;
    attention.softcap = d.softcap;
    attention.keys = {&key_chunk, rows, d.dim, DType::kFloat16};
    attention.values = {&value_chunk, rows, d.dim, DType::kFloat16};
    attention.dense = {{d.zone, rows}};
    if (!d.searched) attention.sets = &d.given;
    if (d.tail) attention.num_windows = d.zone / kWindowTokens;
    attention.windows = {&mean_chunk, d.zone / kWindowTokens};
    output.assign(d.queries.size(), 7.0f);
    log_sum_exp.assign(d.group, 7.0f);
  }
  Laid(const Laid&) = delete;

  Buffer keys, values, means;
  Zone zone;
  const uint8_t *key_chunk, *value_chunk, *mean_chunk;
  cpu::AttentionTask attention;
  SearchOutput found;
  std::vector<float> output, log_sum_exp;
  bool done;
};

Outcome OnHost(Backend* cpu, const Drawn& d, Laid* laid) {
  if (d.searched) {
    const SearchTask search = laid->zone.Task(d.queries.data(), d.group, true, 0);
    if (const Outcome o = cpu->Search(&search, 1, d.params, &laid->found); o != Outcome::kDone) return o;
    laid->attention.sets = &laid->found.positions;
    if (d.params.scope == Scope::kPerQHead) laid->attention.logits = &laid->found.scores;
  }
  cpu::Attend(laid->attention, laid->output.data(), laid->log_sum_exp.data());
  return Outcome::kDone;
}

// Queries and room for the answer in the device's memory.
class Tensors {
 public:
  Tensors(Backend* gpu, const Drawn& d)
      : gpu_(gpu),
        queries_(gpu->Allocate(d.queries.size() * sizeof(float), MemorySpace::kCodes)),
        output_(gpu->Allocate(d.queries.size() * sizeof(float), MemorySpace::kCodes)),
        sums_(gpu->Allocate(d.group * sizeof(float), MemorySpace::kCodes)),
        host_(gpu->Allocate(d.queries.size() * sizeof(float), MemorySpace::kStore)) {
    done_ = queries_ && output_ && sums_ && host_;
    if (!done_) return;
    memcpy(host_.data(), d.queries.data(), host_.size());
    const CopyTask up = {queries_.data(), host_.data(), host_.size()};
    done_ = gpu->Copy(&up, 1) == Outcome::kDone;
  }
  bool done() const { return done_; }
  float* queries() const { return reinterpret_cast<float*>(queries_.data()); }
  float* output() const { return reinterpret_cast<float*>(output_.data()); }
  float* sums() const { return reinterpret_cast<float*>(sums_.data()); }
  bool Read(Laid* laid) const { return Down(output_, &laid->output) && Down(sums_, &laid->log_sum_exp); }
  // The device's own memory is told from the host's, be it page-locked.
  bool ToldApart(const Drawn& d) const {
    DeviceAttention* const device = gpu_->attention();
    return device->Holds(queries_.data(), queries_.size()) && device->Holds(sums_.data(), sums_.size()) &&
           !device->Holds(host_.data(), host_.size()) && !device->Holds(d.queries.data(), sizeof(float)) &&
           device->CanAwait(nullptr);
  }

 private:
  bool Down(const Buffer& from, std::vector<float>* to) const {
    const CopyTask copy = {host_.data(), from.data(), to->size() * sizeof(float)};
    if (gpu_->Copy(&copy, 1) != Outcome::kDone) return false;
    memcpy(to->data(), host_.data(), copy.bytes);
    return true;
  }

  Backend* const gpu_;
  Buffer queries_, output_, sums_, host_;
  bool done_;
};

Outcome OnDevice(Backend* gpu, const Drawn& d, const Tensors& there, Laid* laid) {
  SearchTask search = laid->zone.Task(d.queries.data(), d.group, true, 0);
  AttendTask task;
  task.attention = laid->attention;
  task.search = d.searched ? 0 : -1;
  task.output = laid->output.data();
  task.log_sum_exp = laid->log_sum_exp.data();
  if (d.on_device) {
    search.queries = task.attention.queries = there.queries();
    search.device_queries = task.device_queries = task.device_output = true;
    task.output = there.output();
    task.log_sum_exp = there.sums();
  }
  const Outcome o = gpu->attention()->Attend(&search, d.searched ? 1 : 0, d.params, &laid->found, &task, 1);
  if (o != Outcome::kDone || !d.on_device) return o;
  return there.Read(laid) ? o : Outcome::kLost;
}

std::optional<Difference> FirstBeyond(const std::string& what, const std::vector<float>& cpu,
                                      const std::vector<float>& gpu) {
  for (size_t i = 0; i < cpu.size(); ++i) {
    if (cpu[i] == gpu[i] || std::fabs(cpu[i] - gpu[i]) <= kWithin) continue;
    return DifferAt(what + "[" + std::to_string(i) + "]", TextOf(cpu[i]), TextOf(gpu[i]));
  }
  return std::nullopt;
}

PartResult Attention(const Rig& rig) {
  PartResult result;
  result.planned = std::max(2, rig.options.items / 10);
  if (rig.gpu->attention() == nullptr) return Fail(&result, "the device does not attend"), result;
  for (uint64_t seed = rig.options.seed; result.count < result.planned && !rig.Late(); ++seed) {
    Rng rng(seed);
    const Drawn drawn(&rng, rig.options);
    Laid host(rig.cpu, drawn), device(rig.gpu, drawn);
    const Tensors tensors(rig.gpu, drawn);
    if (!host.done || !device.done || !tensors.done()) return Fail(&result, "memory of an item"), result;
    Outcome o = OnHost(rig.cpu, drawn, &host);
    if (o == Outcome::kDone) o = OnDevice(rig.gpu, drawn, tensors, &device);
    if (o != Outcome::kDone) return Fail(&result, "attention: " + NameOf(o)), result;
    std::optional<Difference> first;
    if (!tensors.ToldApart(drawn)) first = DifferAt("whose memory a pointer is", "told", "not told");
    if (!first && drawn.searched) first = FirstDifference(host.found, device.found);
    if (!first) first = FirstBeyond("output", host.output, device.output);
    if (!first) first = FirstBeyond("log_sum_exp", host.log_sum_exp, device.log_sum_exp);
    Count(&result, std::move(first), drawn.Shape(seed));
  }
  return result;
}

}  // namespace

std::vector<Part> AttendChecks(const SuiteOptions&) {
  return {{"attend", "attention over what is found, tensors of the host's and on the device", 60, false, Attention}};
}

}  // namespace seine::device
