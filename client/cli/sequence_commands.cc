// seine seq list | get | create | fork | truncate | delete | snapshot | restore.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"

namespace seine::cli {
namespace {

Json ToJson(const client::Sequence& sequence) {
  return {{"index", sequence.index}, {"id", sequence.id}, {"generation", sequence.generation}};
}

Json ToJson(const client::SequenceInfo& info) {
  Json json = ToJson(info.handle);
  json["layer_tokens"] = info.layer_tokens;
  json["code_bytes"] = info.code_bytes;
  json["store_bytes"] = info.store_bytes;
  json["on_disk"] = info.on_disk;
  return json;
}

// "8192" where every layer holds as many, else "8000-8192".
std::string TokensOf(const client::SequenceInfo& info) {
  if (info.layer_tokens.empty()) return "0";
  const auto [low, high] = std::minmax_element(info.layer_tokens.begin(), info.layer_tokens.end());
  return *low == *high ? absl::StrCat(*low) : absl::StrCat(*low, "-", *high);
}

const char* PlaceOf(const client::SequenceInfo& info) { return info.on_disk ? "disk" : "memory"; }

void Show(const Session& session, const client::SequenceInfo& info) {
  session.Print(ToJson(info), [&] {
    return ToString({{"index", info.handle.index},
                     {"id", info.handle.id},
                     {"generation", absl::StrCat(info.handle.generation)},
                     {"layers", absl::StrCat(info.layer_tokens.size())},
                     {"tokens a layer", TokensOf(info)},
                     {"codes", FormatBytes(info.code_bytes)},
                     {"store", FormatBytes(info.store_bytes)},
                     {"place", PlaceOf(info)}});
  });
}

void ShowHandle(const Session& session, const client::Sequence& sequence) {
  session.Print(ToJson(sequence), [&] {
    return absl::StrCat(sequence.index, "/", sequence.id, "  generation ", sequence.generation, "\n");
  });
}

void AddRow(const client::SequenceInfo& info, Table* table) {
  table->AddRow({info.handle.id, absl::StrCat(info.handle.generation), TokensOf(info), FormatBytes(info.code_bytes),
                 FormatBytes(info.store_bytes), PlaceOf(info)});
}

absl::Status List(const Session& session, const std::string& index) {
  const absl::StatusOr<std::vector<client::SequenceInfo>> sequences = session.client->ListSequences(index);
  if (!sequences.ok()) return sequences.status();
  Json json = Json::array();
  Table table({"ID", "GENERATION", "TOKENS", "CODES", "STORE", "PLACE"});
  for (const client::SequenceInfo& info : *sequences) {
    json.push_back(ToJson(info));
    AddRow(info, &table);
  }
  session.Print({{"index", index}, {"sequences", json}}, [&] {
    return sequences->empty() ? absl::StrCat("no sequence yet (next: seine seq create ", index, ")\n")
                              : table.ToString();
  });
  return absl::OkStatus();
}

// Subcommands that show the SequenceInfo, or the handle, that a call gives back.
template <typename Result>
absl::Status ShowResult(const Session& session, const absl::StatusOr<Result>& result) {
  if (!result.ok()) return result.status();
  if constexpr (std::is_same_v<Result, client::Sequence>) {
    ShowHandle(session, *result);
  } else {
    Show(session, *result);
  }
  return absl::OkStatus();
}

// What was written or restored.
absl::Status ShowSnapshot(const Session& session, const char* done, const std::string& file,
                          const absl::StatusOr<client::SnapshotResult>& result) {
  if (!result.ok()) return result.status();
  Json json = Json::array();
  Table table({"ID", "GENERATION", "TOKENS", "CODES", "STORE"});
  for (const client::SequenceInfo& info : result->sequences) {
    json.push_back(ToJson(info));
    AddRow(info, &table);
  }
  session.Print({{"file", file}, {"bytes", result->bytes}, {"sequences", json}}, [&] {
    return absl::StrCat(done, " ", file, ", ", FormatBytes(result->bytes), "\n", table.ToString());
  });
  return absl::OkStatus();
}

void AddSnapshotCommands(CLI::App* seq, Session* session, const std::shared_ptr<client::Sequence>& sequence) {
  auto file = std::make_shared<std::string>();
  auto alone = std::make_shared<bool>(false);
  CLI::App* snapshot = seq->add_subcommand("snapshot", "Write a sequence and its forks to a file of the server's");
  snapshot->footer(
      "The file lies in the server's snapshots.dir; one that has the name is replaced.\n"
      "Example:\n  seine seq snapshot llama chat chat-monday");
  AddSequenceArguments(snapshot, sequence.get());
  snapshot->add_option("FILE", *file, "Name of the snapshot: letters, digits, '.', '_' or '-'")->required();
  snapshot->add_flag("--alone", *alone, "Without its forks and those that it was forked from");
  snapshot->callback([=] {
    session->action = [=] {
      const auto scope = *alone ? client::SnapshotScope::kSequence : client::SnapshotScope::kFamily;
      return ShowSnapshot(*session, "wrote", *file, session->client->Snapshot(*sequence, *file, scope));
    };
  });

  CLI::App* restore = seq->add_subcommand("restore", "Make the sequences that a snapshot holds");
  restore->footer("Example:\n  seine seq restore llama chat-monday");
  restore->add_option("INDEX", sequence->index, "Name of the index, made with the settings of the one written")
      ->required();
  restore->add_option("FILE", *file, "Name of the snapshot")->required();
  restore->add_option("--id", sequence->id, "Id of its only sequence (default: the one that it had)");
  restore->callback([=] {
    session->action = [=] {
      return ShowSnapshot(*session, "restored", *file, session->client->Restore(sequence->index, *file, sequence->id));
    };
  });
}

}  // namespace

void AddSequenceCommands(CLI::App* app, Session* session) {
  CLI::App* seq = app->add_subcommand("seq", "Create, list, show, fork, truncate, delete, write and restore sequences");
  auto sequence = std::make_shared<client::Sequence>();  // one subcommand runs, so they share their arguments
  auto new_id = std::make_shared<std::string>();
  auto position = std::make_shared<std::optional<int64_t>>();

  CLI::App* list = seq->add_subcommand("list", "List the sequences of an index");
  list->footer("Example:\n  seine seq list llama");
  list->add_option("INDEX", sequence->index, "Name of the index")->required();
  list->callback([=] { session->action = [=] { return List(*session, sequence->index); }; });

  CLI::App* get = seq->add_subcommand("get", "Show a sequence");
  get->footer("Example:\n  seine seq get llama chat");
  AddSequenceArguments(get, sequence.get());
  get->callback(
      [=] { session->action = [=] { return ShowResult(*session, session->client->GetSequence(*sequence)); }; });

  CLI::App* create = seq->add_subcommand("create", "Create an empty sequence");
  create->footer("Example:\n  seine seq create llama chat");
  create->add_option("INDEX", sequence->index, "Name of the index")->required();
  create->add_option("ID", sequence->id, "Id of the sequence (default: the server makes one)");
  create->callback([=] {
    session->action = [=] {
      return ShowResult(*session, session->client->CreateSequence(sequence->index, sequence->id));
    };
  });

  CLI::App* fork = seq->add_subcommand("fork", "Copy a sequence's first tokens (copy-on-write)");
  fork->footer("Example:\n  seine seq fork llama chat branch --position 4096");
  AddSequenceArguments(fork, sequence.get());
  fork->add_option("NEW_ID", *new_id, "Id of the copy (default: the server makes one)");
  fork->add_option("--position", *position, "Copy the tokens before this position (default: all)");
  fork->callback([=] {
    session->action = [=] {
      return ShowResult(*session, session->client->ForkSequence(*sequence, *new_id, *position));
    };
  });

  CLI::App* truncate = seq->add_subcommand("truncate", "Drop the tokens at and after a position");
  truncate->footer("Example:\n  seine seq truncate llama chat --position 4096");
  AddSequenceArguments(truncate, sequence.get());
  truncate->add_option("--position", *position, "First position to drop")->required();
  truncate->callback([=] {
    session->action = [=] { return ShowResult(*session, session->client->TruncateSequence(*sequence, **position)); };
  });

  CLI::App* remove = seq->add_subcommand("delete", "Delete a sequence");
  remove->footer("Example:\n  seine seq delete llama chat");
  AddSequenceArguments(remove, sequence.get());
  remove->callback([=] {
    session->action = [=]() -> absl::Status {
      absl::Status status = session->client->DeleteSequence(*sequence);
      if (status.ok()) {
        session->Print({{"deleted", ToJson(*sequence)}},
                       [&] { return absl::StrCat("deleted ", sequence->index, "/", sequence->id, "\n"); });
      }
      return status;
    };
  });
  AddSnapshotCommands(seq, session, sequence);
}

}  // namespace seine::cli
