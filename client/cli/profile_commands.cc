// seine calibrate, from files or from a server, and seine profile show.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/commands.h"
#include "client/cli/input/calibration.h"
#include "profile/balance.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine::cli {
namespace {

struct CalibrateArguments {
  CalibrationOptions options;
  LiveOptions live;
  std::string out;
  bool fp32 = false;
};

struct ShowArguments {
  std::string path;
  std::optional<int> layer;
  int64_t horizon = 32768;
  BalanceOptions balance;
};

Json ToJson(const Profile& profile) {
  return {{"model", profile.model},
          {"texts", profile.texts},
          {"licence", profile.licence},
          {"rope", profile.rope_json.empty() ? Json() : Json(profile.rope_json)},
          {"rope_style", profile.rope_style == Rope::Style::kHalfSplit ? "half_split" : "interleaved"},
          {"layer_ropes", profile.layer_ropes_json.empty() ? Json() : Json(profile.layer_ropes_json)},
          {"num_layers", profile.num_layers()},
          {"num_q_heads", profile.num_q_heads},
          {"num_kv_heads", profile.num_kv_heads},
          {"head_dim", profile.head_dim},
          {"key_tokens", profile.key_tokens},
          {"query_tokens", profile.query_tokens}};
}

std::string RopeText(const Profile& profile) {
  if (profile.rope_json.empty()) return "not stated: moments as observed";
  std::string text = profile.rope_json;
  if (absl::StrContains(text, R"("table")")) text = absl::StrCat("a table of ", profile.head_dim / 2, " frequencies");
  const auto others = ParseLayerRopes(profile.layer_ropes_json, profile.head_dim, profile.rope_style, /*length=*/1);
  std::vector<int32_t> still, otherwise;
  if (others.ok()) {  // as ReadProfile has found
    for (const auto& [layer, rope] : *others) (rope.turns() ? otherwise : still).push_back(layer);
  }
  if (!still.empty()) absl::StrAppend(&text, "; layers ", FormatRuns(still), " do not turn");
  if (!otherwise.empty()) absl::StrAppend(&text, "; layers ", FormatRuns(otherwise), " turn otherwise");
  return text;
}

std::vector<std::pair<std::string, std::string>> ToFields(const Profile& profile) {
  return {{"model", profile.model},
          {"layers", absl::StrCat(profile.num_layers(), ", of ", profile.num_q_heads, " query heads, ",
                                  profile.num_kv_heads, " KV heads, head_dim ", profile.head_dim)},
          {"measured", absl::StrCat(profile.key_tokens, " keys and ", profile.query_tokens, " queries a layer")},
          {"texts", absl::StrJoin(profile.texts, "; ")},
          {"licence", profile.licence},
          {"values", profile.layers[0].v_mean.empty() ? "not measured" : "measured"},
          {"rope", RopeText(profile)}};
}

absl::Status Write(const CalibrateArguments& arguments, const Profile& profile) {
  const ProfilePrecision precision = arguments.fp32 ? ProfilePrecision::kFloat32 : ProfilePrecision::kFloat16;
  const absl::Status status = WriteProfile(profile, precision, arguments.out);
  if (status.ok() || arguments.fp32 || !absl::StrContains(status.message(), "write fp32")) return FileError(status);
  return FileError(absl::InvalidArgumentError(absl::StrCat(status.message(), " (--fp32)")));
}

absl::Status RunCalibrate(const Session& session, const CalibrateArguments& arguments) {
  absl::StatusOr<Profile> profile;
  {
    std::unique_ptr<ProgressBar> bar;
    const auto progress = [&](int64_t done, int64_t total) {
      if (bar == nullptr) bar = std::make_unique<ProgressBar>("calibrate", total);
      bar->Update(done);
    };
    profile = arguments.options.traces.empty() ? CalibrateLive(arguments.live, session.client.get(), progress)
                                               : Calibrate(arguments.options, progress);
  }
  if (!profile.ok()) return profile.status();
  absl::Status written = Write(arguments, *profile);
  if (!written.ok()) return written;
  std::error_code ignored;  // the file stands; its size is for show
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(arguments.out, ignored));
  Json json = {{"out", arguments.out}, {"bytes", bytes}, {"dtype", arguments.fp32 ? "fp32" : "fp16"}};
  json.update(ToJson(*profile));
  session.Print(json, [&] {
    auto fields = ToFields(*profile);
    fields.insert(fields.begin(), {"wrote", absl::StrCat(arguments.out, " (", FormatBytes(bytes), ", ",
                                                         arguments.fp32 ? "fp32" : "fp16", ")")});
    return ToString(fields);
  });
  return absl::OkStatus();
}

// "4:6 3:2 0:8": six coordinates of four bits, then two of three, then eight of none.
std::string RunLengths(const std::vector<uint8_t>& bits) {
  std::string out;
  for (size_t i = 0; i < bits.size();) {
    size_t end = i;
    while (end < bits.size() && bits[end] == bits[i]) ++end;
    absl::StrAppend(&out, i == 0 ? "" : " ", bits[i], ":", end - i);
    i = end;
  }
  return out;
}

// How a head's inner products spread over the coordinates: coordinate i carries lambda_i^2 of their variance.
struct Spread {
  explicit Spread(const Eigen::VectorXd& lambda) {
    const Eigen::ArrayXd share = lambda.array().square() / lambda.squaredNorm();
    const auto leading = [&](Eigen::Index count) { return share.head(std::min(count, share.size())).sum(); };
    first = leading(1);
    four = leading(4);
    sixteen = leading(16);
    // Shares that underflow to zero carry no entropy.
    effective_rank = std::exp(-(share * share.max(1e-300).log()).sum());
  }
  double first, four, sixteen;  // share of the leading coordinates
  double effective_rank;        // exp of the shares' entropy
};

// The bits' options as flags, checked before any head is worked on.
absl::Status CheckBits(const Profile& profile, const ShowArguments& arguments) {
  if (profile.head_dim % 8 != 0) {
    return FileError(absl::InvalidArgumentError(
        absl::StrCat(arguments.path, ": head_dim: the balanced code takes multiples of 8, not ", profile.head_dim)));
  }
  const Eigen::MatrixXd even = Eigen::MatrixXd::Identity(profile.head_dim, profile.head_dim);
  absl::Status status = MakeBalance(even, even, arguments.balance).status();
  if (status.ok()) return status;
  return UsageError(
      absl::StrReplaceAll(status.message(), {{"coarse_bits:", "--coarse-bits:"}, {"total_bits:", "--total-bits:"}}));
}

// Keys of a sequence of `horizon` tokens, for the `horizon` queries that follow.
absl::StatusOr<Balance> BalanceOf(const Profile& profile, const Rope& rope, int layer, int kv_head,
                                  const ShowArguments& arguments) {
  const double horizon = static_cast<double>(arguments.horizon);
  absl::StatusOr<Balance> balance = MakeBalance(
      CarryMoment(profile.layers[layer].k_residual[kv_head], rope, 0, horizon),
      CarryMoment(GroupQueryMoment(profile, layer, kv_head), rope, horizon, 2 * horizon), arguments.balance);
  if (balance.ok()) return balance;
  return FileError(absl::InvalidArgumentError(
      absl::StrCat(arguments.path, ": layer ", layer, ", KV head ", kv_head, ": ", balance.status().message())));
}

absl::Status RunShow(const Session& session, const ShowArguments& arguments) {
  const absl::StatusOr<Profile> profile = ReadProfile(arguments.path);
  if (!profile.ok()) return FileError(profile.status());
  const int num_layers = profile->num_layers();
  const int first = arguments.layer.value_or(0), last = arguments.layer.value_or(num_layers - 1);
  if (first < 0 || last >= num_layers) {
    return UsageError(absl::StrCat("--layer: ", first, " is not in [0, ", num_layers, ")"));
  }
  absl::Status bits = CheckBits(*profile, arguments);
  if (!bits.ok()) return bits;
  const absl::StatusOr<Rope> rope =
      ParseRope(profile->rope_json, profile->head_dim, profile->rope_style, 2 * arguments.horizon);
  if (!rope.ok()) return FileError(rope.status());
  const absl::StatusOr<LayerRopes> others =
      ParseLayerRopes(profile->layer_ropes_json, profile->head_dim, profile->rope_style, 2 * arguments.horizon);
  if (!others.ok()) return FileError(others.status());

  std::string checksum;
  const absl::Status known = CheckIsProfile(arguments.path, &checksum);
  if (!known.ok()) return FileError(known);
  Json json = ToJson(*profile);
  json["checksum"] = checksum.empty() ? Json() : Json(checksum);
  json["horizon"] = arguments.horizon;
  json["coarse_bits"] = arguments.balance.coarse_bits;
  json["total_bits"] = arguments.balance.total_bits;
  json["heads"] = Json::array();
  Table table({"LAYER", "KV HEAD", "TOP 1", "TOP 4", "TOP 16", "EFF. RANK", "COARSE BITS", "TOTAL BITS"});
  {
    ProgressBar bar("balance", int64_t{last - first + 1} * profile->num_kv_heads);
    for (int layer = first; layer <= last; ++layer) {
      for (int head = 0; head < profile->num_kv_heads; ++head) {
        const absl::StatusOr<Balance> balance =
            BalanceOf(*profile, RopeOfLayer(*rope, *others, layer), layer, head, arguments);
        if (!balance.ok()) return balance.status();
        const Spread spread(balance->lambda);
        json["heads"].push_back({{"layer", layer},
                                 {"kv_head", head},
                                 {"top_1", spread.first},
                                 {"top_4", spread.four},
                                 {"top_16", spread.sixteen},
                                 {"effective_rank", spread.effective_rank},
                                 {"coarse_bits", balance->coarse_bits},
                                 {"total_bits", balance->total_bits}});
        table.AddRow({absl::StrCat(layer), absl::StrCat(head), FormatDouble(spread.first, 3),
                      FormatDouble(spread.four, 3), FormatDouble(spread.sixteen, 3),
                      FormatDouble(spread.effective_rank, 1), RunLengths(balance->coarse_bits),
                      RunLengths(balance->total_bits)});
        bar.Update(int64_t{layer - first} * profile->num_kv_heads + head + 1);
      }
    }
  }
  session.Print(json, [&] {
    auto fields = ToFields(*profile);
    fields.emplace_back("checksum",
                        checksum.empty() ? "none: damage to the file goes unseen" : checksum + ", as it should be");
    fields.emplace_back("horizon", rope->stated() ? absl::StrCat(arguments.horizon, " tokens") : "without effect");
    return absl::StrCat(ToString(fields), "\n", table.ToString());
  });
  return absl::OkStatus();
}

void AddCalibrate(CLI::App* app, Session* session) {
  CLI::App* calibrate = app->add_subcommand("calibrate", "Measure a model's profile, from recorded traces or a server");
  calibrate->footer(
      "Traces are those of python -m seine_kv.trace, of one model, with every layer in one of them:\n"
      "  python -m seine_kv.trace --text book.txt --layers $(seq -s, 0 29) --out book.safetensors\n"
      "  seine calibrate --trace book.safetensors --out model.profile.safetensors\n"
      "Or from sequences of a running server, on the keys (and values) that it stores and a sample of the latest "
      "queries that it was asked:\n"
      "  seine calibrate --index llama --sequence chat,code --out model.profile.safetensors");
  auto arguments = std::make_shared<CalibrateArguments>();
  CLI::Option* trace =
      calibrate->add_option("--trace", arguments->options.traces, "A trace; may be given again, and the texts add up")
          ->allow_extra_args(false);
  CLI::Option* index = calibrate->add_option("--index", arguments->live.index, "An index of the server (no --trace)");
  CLI::Option* sequence =
      calibrate->add_option("--sequence", arguments->live.sequences, "Its sequences to measure: id, or id,id")
          ->delimiter(',')
          ->allow_extra_args(false);
  trace->excludes(index)->excludes(sequence);
  index->needs(sequence);
  sequence->needs(index);
  calibrate->add_option("--out", arguments->out, "Profile to write (replaced if it exists)")->required();
  calibrate->add_flag("--fp32", arguments->fp32, "Store in fp32 (default: fp16, half the size)");
  calibrate
      ->add_option("--sink", arguments->options.sink,
                   "First tokens of each text to leave out (default: 16; a server's own)")
      ->check(CLI::Range(0, 1 << 30).description(""))
      ->excludes(index);
  calibrate->add_option("--licence", arguments->options.licence, "Terms of model and texts (default: the traces')");
  calibrate->callback([=] {
    if (trace->empty() && index->empty()) throw CLI::RequiredError("--trace, or --index and --sequence,");
    arguments->live.licence = arguments->options.licence;
    session->needs_server = trace->empty();
    session->action = [=] { return RunCalibrate(*session, *arguments); };
  });
}

void AddShow(CLI::App* app, Session* session) {
  CLI::App* profile = app->add_subcommand("profile", "Look into model profiles (no server)");
  CLI::App* show = profile->add_subcommand("show", "Show what a profile holds and how it would balance each head");
  show->footer(
      "TOP n: share of the variance of <q, k - centre> in the n leading coordinates; EFF. RANK: exp of the entropy "
      "of those shares; BITS: bits:coordinates, the leading first. Keys stand at [0, horizon], queries after them.\n"
      "Example:\n"
      "  seine profile show model.profile.safetensors --layer 4 --coarse-bits .5");
  auto arguments = std::make_shared<ShowArguments>();
  show->add_option("FILE", arguments->path, "Profile, as seine calibrate writes it")->required();
  show->add_option("--layer", arguments->layer, "One layer, from 0 (default: all)");
  show->add_option("--horizon", arguments->horizon, "Tokens that queries look back from, and ahead (default: 32768)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""));
  show->add_option("--coarse-bits", arguments->balance.coarse_bits,
                   "Of the scanned plane, a coordinate: .5 or 1 (default: 1)");
  show->add_option("--total-bits", arguments->balance.total_bits, "Of the whole code, a coordinate (default: 2)");
  show->callback([=] {
    session->needs_server = false;
    session->action = [=] { return RunShow(*session, *arguments); };
  });
}

}  // namespace

void AddProfileCommands(CLI::App* app, Session* session) {
  AddCalibrate(app, session);
  AddShow(app, session);
}

}  // namespace seine::cli
