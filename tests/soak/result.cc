#include "tests/soak/result.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace seine::soak {
namespace {

using Json = nlohmann::ordered_json;

struct Column {
  const char* title;
  const char* figure;  // nullptr: not a figure
  int width, digits;
};
constexpr Column kColumns[] = {
    {"attack", nullptr, -21, 0},     {"seed", nullptr, 10, 0},          {"ops", nullptr, 9, 0},
    {"faults", nullptr, 9, 0},       {"step p50", "step_p50_ms", 8, 2}, {"p99", "step_p99_ms", 8, 2},
    {"max", "step_max_ms", 7, 0},    {"health", "health_p99_ms", 7, 1}, {"connect", "connect_p99_ms", 7, 1},
    {"livez", "livez_p99_ms", 7, 1}, {"RSS MiB", "rss_mib", 7, 0},      {"grown", "rss_grown_mib", 7, 0},
    {"end s", "end_s", 7, 2},        {"verdict", nullptr, 1, 0},
};

std::string Cell(const Column& column, const std::string& text) {
  char cell[160];
  snprintf(cell, sizeof(cell), "%*s ", column.width, text.c_str());
  return cell;
}

std::string FigureText(const Json& figures, const Column& column) {
  const auto found = figures.find(column.figure);
  if (found == figures.end()) return "-";
  char text[32];
  snprintf(text, sizeof(text), "%.*f", column.digits, found->get<double>());
  return text;
}

bool InTable(const std::string& figure) {
  return std::any_of(std::begin(kColumns), std::end(kColumns),
                     [&](const Column& c) { return c.figure != nullptr && figure == c.figure; });
}

// What the table has no column for.
std::string OtherFigures(const Json& figures) {
  std::string text;
  for (const auto& [name, value] : figures.items()) {
    if (!InTable(name)) absl::StrAppend(&text, text.empty() ? "  " : ", ", name, " ", value.dump());
  }
  return text;
}

int64_t Scaled(int64_t number, double seconds) {
  if (number == 0) return 0;
  return std::max<int64_t>(1, std::llround(static_cast<double>(number) * seconds / 10));
}

}  // namespace

Stated Stated::For(double seconds) const { return {Scaled(ops, seconds), Scaled(faults, seconds)}; }

std::string Result::Verdict() const {
  std::vector<std::string> wrong;
  if (crashes > 0) wrong.emplace_back("crash");
  if (hangs > 0) wrong.emplace_back("hang");
  if (breaks > 0) wrong.emplace_back("break");
  if (over_mib > 0) wrong.emplace_back("memory");
  if (Short()) wrong.emplace_back("short");
  return wrong.empty() ? "ok" : absl::StrJoin(wrong, ",");
}

Json ToJson(const Result& r) {
  return {{"attack", r.member},
          {"transport", r.transport},
          {"seed", r.seed},
          {"commit", r.commit},
          {"time", r.time},
          {"seconds", std::round(r.seconds * 100) / 100},
          {"ops", r.ops},
          {"faults", r.faults},
          {"stated_ops", r.stated.ops},
          {"stated_faults", r.stated.faults},
          {"crashes", r.crashes},
          {"hangs", r.hangs},
          {"contract_breaks", r.breaks},
          {"rss_over_limit_mib", std::round(r.over_mib * 10) / 10},
          {"verdict", r.Verdict()},
          {"figures", r.figures}};
}

bool FromJson(const Json& json, Result* r) {
  try {
    json.at("attack").get_to(r->member);
    r->transport = json.value("transport", "unix");  // ledgers of before have none
    json.at("seed").get_to(r->seed);
    json.at("commit").get_to(r->commit);
    json.at("time").get_to(r->time);
    json.at("seconds").get_to(r->seconds);
    json.at("ops").get_to(r->ops);
    json.at("faults").get_to(r->faults);
    json.at("stated_ops").get_to(r->stated.ops);
    json.at("stated_faults").get_to(r->stated.faults);
    json.at("crashes").get_to(r->crashes);
    json.at("hangs").get_to(r->hangs);
    json.at("contract_breaks").get_to(r->breaks);
    json.at("rss_over_limit_mib").get_to(r->over_mib);
    r->figures = json.at("figures");
    return r->figures.is_object();
  } catch (const Json::exception&) {
    return false;
  }
}

std::string TableHeader() {
  std::string row;
  for (const Column& column : kColumns) row += Cell(column, column.title);
  return absl::StrCat(row,
                      "\n(a bystander's latencies in ms: Decode steps; p99 of GetServerInfo and of new connections)");
}

std::string TableRow(const Result& r) {
  std::string row;
  for (const Column& column : kColumns) {
    const std::string title = column.title;
    std::string text;
    if (title == "attack") {
      text = r.member;
    } else if (title == "seed") {
      text = absl::StrCat(r.seed);
    } else if (title == "ops") {
      text = absl::StrCat(r.ops);
    } else if (title == "faults") {
      text = absl::StrCat(r.faults);
    } else if (title == "verdict") {
      text = r.Verdict();
    } else {
      text = FigureText(r.figures, column);
    }
    row += Cell(column, text);
  }
  if (r.Short()) {
    absl::StrAppend(&row, "\n  stated: at least ", r.stated.ops, " operations and ", r.stated.faults, " faults");
  }
  if (const std::string others = OtherFigures(r.figures); !others.empty()) absl::StrAppend(&row, "\n", others);
  for (const std::string& note : r.notes) absl::StrAppend(&row, "\n  ", note);
  return row;
}

}  // namespace seine::soak
