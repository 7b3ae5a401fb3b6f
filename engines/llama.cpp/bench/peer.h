// Another server, timed over the same prompts by bench/peer.py.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_PEER_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_PEER_H_

#include <vector>

#include "engines/llama.cpp/bench/setup/bench_options.h"
#include "engines/llama.cpp/bench/setup/row_file.h"
#include "llama.h"

namespace seine::llama {

// What o.peer says of each text at each length, as its help has it. Fails where it does.
Json MeasurePeer(const llama_model* model, const Options& o, const std::vector<std::vector<llama_token>>& texts);

// Adds to each row what the peer took at its length: medians over the texts, null where it does not say.
void AddPeer(const Json& peer, const Options& o, Json* rows);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_PEER_H_
