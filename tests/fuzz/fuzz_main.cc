// seine-fuzz: libFuzzer over one target. `seine-fuzz TARGET [FLAG...] [FOLDER...]`; libFuzzer's own flags (-help=1).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "tests/fuzz/target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace seine::fuzz {
namespace {

constexpr char kUsage[] = R"(usage: seine-fuzz TARGET [FLAG...] [FOLDER...]   libFuzzer; -help=1 shows its flags
       seine-fuzz --list                          the targets
       seine-fuzz --seeds TARGET FOLDER           writes the inputs to begin with
)";

constexpr size_t kRoom = 1 << 12;  // that libFuzzer may let a part grow by

std::unique_ptr<Target> target;

std::unique_ptr<Target> Make(const std::string& name) {
  for (const TargetEntry& entry : Targets()) {
    if (entry.name == name) return entry.make();
  }
  std::cerr << "seine-fuzz: there is no target " << name << "\n" << kUsage;
  exit(2);
}

void WriteSeeds(const std::string& name, const std::string& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : Make(name)->Seeds()) {
    std::ofstream(folder + "/seed-" + std::to_string(number++), std::ios::binary) << seed;
  }
}

std::string ByLibFuzzer(std::string bytes) {
  const size_t size = bytes.size();
  bytes.resize(size + kRoom);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size()));
  return bytes;
}

void Begin(int* argc, char*** argv) {
  const std::string command = *argc > 1 ? (*argv)[1] : "";
  if (command == "--list") {
    for (const TargetEntry& entry : Targets()) std::cout << entry.name << ": " << entry.what << "\n";
    exit(0);
  }
  if (command == "--seeds" && *argc == 4) {
    WriteSeeds((*argv)[2], (*argv)[3]);
    exit(0);
  }
  if (command.empty() || command[0] == '-') {
    std::cerr << kUsage;
    exit(2);
  }
  target = Make(command);
  for (int i = 1; i + 1 <= *argc; ++i) (*argv)[i] = (*argv)[i + 1];  // libFuzzer sees the rest
  --*argc;
}

}  // namespace
}  // namespace seine::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  seine::fuzz::Begin(argc, argv);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  seine::fuzz::target->Run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  seine::fuzz::Random random(seed);
  const std::string changed =
      seine::fuzz::target->Mutate(std::string(reinterpret_cast<char*>(data), size), random, &seine::fuzz::ByLibFuzzer);
  const size_t count = std::min(changed.size(), max_size);
  memcpy(data, changed.data(), count);
  return count;
}
