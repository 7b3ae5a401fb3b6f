// seine-soak: each member of the soak against a seined of its own, beside a bystander. The last line is JSON (Totals in
// campaign.h). Exit code 0 where every run was as promised.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <string>

#include "tests/soak/attack_run.h"
#include "tests/soak/campaign.h"
#include "tests/soak/drills/fronts.h"
#include "tests/soak/drills/mover.h"

namespace seine::soak {
namespace {

constexpr char kAbout[] =
    R"(Attacks a seined of its own, one way after another, while a bystander decodes beside them; then
ends the server, most often under attack. Each run prints its seed, which makes it again: --only NAME --seed N.)";
constexpr char kFooter[] = R"(
A run fails on a crash, a bystander's call above 2 s, an answer outside the contract, memory above what is promised, or
fewer operations or faults than stated. With --hours a killed soak that is started again goes on where it was.
Try it:
  seine-soak --only cancels --seed 7
  seine-soak --hours 8 --ledger soak.jsonl --commit $(git rev-parse --short HEAD))";

const std::map<std::string, Transport> kTransports = {
    {"unix", Transport::kUnix}, {"tcp", Transport::kTcp}, {"tls", Transport::kTls}};

struct Child {
  std::string attack, server, metrics, mover;  // of this program as a child
};

// Turns the name of a transport into its number, as CLI11 wants it.
std::string ReadTransport(std::string& name) {
  const auto found = kTransports.find(name);
  if (found == kTransports.end()) return "there is no transport " + name + "; there are unix, tcp and tls";
  name = std::to_string(static_cast<int>(found->second));
  return "";
}

int Main(int argc, char** argv) {
  CampaignOptions options;
  Child child;
  bool list = false, quick = false;
  options.run.self = argv[0];
  CLI::App app(kAbout, "seine-soak");
  app.footer(kFooter);
  app.add_flag("--list", list, "Print the members and exit.");
  app.add_flag("--quick", quick, "Each for 10 s, once: the default.");
  app.add_flag("--brief", options.brief, "Each for 1 s; hangs are not held against it: the machine may be busy.");
  auto* seconds = app.add_option("--seconds", options.run.seconds, "Each for so long.");
  seconds->check(CLI::Range(.1, 1e6));
  app.add_option("--only", options.only, "These alone.")->delimiter(',')->option_text("NAME[,NAME]");
  app.add_option("--seed", options.run.seed, "Of what is random; the first one with --hours. [1]");
  auto* hours = app.add_option("--hours", options.hours, "Again and again, until the ledger has so many hours.");
  auto* ledger = app.add_option("--ledger", options.ledger, "Keep a line of JSON for each run.")->option_text("FILE");
  hours->check(CLI::PositiveNumber)->needs(ledger);
  app.add_option("--commit", options.commit, "What is tested, for the ledger. [unknown]");
  app.add_option("--transport", options.run.transport,
                 "What attacks come over. Drills are left out but on unix. [unix]")
      ->transform(CLI::Validator(&ReadTransport, ""))
      ->option_text("unix|tcp|tls");
  app.add_option("--attack", child.attack)->group("");
  app.add_option("--server", child.server)->group("");
  app.add_option("--metrics", child.metrics)->group("");
  app.add_option("--mover", child.mover)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::cerr << "seine-soak: " << error.what() << std::endl;
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  if (!child.attack.empty()) return MakeAttack(child.attack, child.server, child.metrics, options.run);
  if (!child.mover.empty()) return RunMover(MoverOrder::Parse(child.mover));
  if (list) {
    for (const Member& member : Members()) std::cout << member.name << ": " << member.what << "\n";
    for (const FrontProgram& front : FrontPrograms()) {
      if (FindMember(std::string("front-") + front.name) != nullptr) continue;
      std::cout << "front-" << front.name << " needs " << front.program << ", which is not here (" << front.package
                << ")\n";
    }
    return 0;
  }
  for (const std::string& name : options.only) {
    const Member* const member = FindMember(name);
    const bool reached = member != nullptr && (member->any_transport || options.run.transport == Transport::kUnix);
    if (reached) continue;
    std::cerr << "seine-soak: --only " << name
              << (member == nullptr ? ": no such attack; --list shows them" : ": it runs with --transport unix alone")
              << std::endl;
    return 2;
  }
  if (options.brief && seconds->count() == 0) options.run.seconds = 1;
  return RunCampaign(options);
}

}  // namespace
}  // namespace seine::soak

int main(int argc, char** argv) { return seine::soak::Main(argc, argv); }
