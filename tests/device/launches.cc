// The kernels of a layer's search and their blocks, as planned: figures that need no device.
#include <cxxabi.h>

#include <cstdlib>
#include <typeinfo>

#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/ops/search/search_plan.h"
#include "kernels/ops/search/search_steps.h"
#include "tests/device/suite.h"
#include "tests/kernels/random_data.h"

namespace seine::device {
namespace {

template <typename Body>
std::string NameOf() {
  int status = 0;
  char* name = abi::__cxa_demangle(typeid(Body).name(), nullptr, nullptr, &status);
  const std::string text = status == 0 ? name : "?";
  std::free(name);
  return text.substr(text.rfind(':') + 1);
}

// One layer of 8 KV heads by default settings, with 640 dense rows.
Json LaunchesOf(int64_t num_keys, int group, const Codec& codec) {
  static const uint8_t* const kStored = nullptr;
  cuda::SearchItem item;
  item.layout = codec.layout();
  item.kind = codec.Tables().kind;
  item.segment_keys = 2048;
  item.num_keys = num_keys;
  item.usual_share = codec.DefaultCandidateFraction(num_keys);
  item.chunks = &kStored;
  item.chunk_tokens = 2048;
  item.key_dtype = DType::kFloat16;
  item.dense_tokens = 640;
  item.group = group;
  const cuda::SearchPlan plan(SearchParams(), std::vector<cuda::SearchItem>(8, item));
  Json kernels = Json::array();
  cuda::ForEachKernel(cuda::SearchLaunch{&plan, {}}, [&](auto body, cuda::BlockIndex grid, auto lanes) {
    if (grid.x == 0 || grid.y == 0) return;
    kernels.push_back({{"kernel", NameOf<decltype(body)>()},
                       {"blocks", grid.x * grid.y},
                       {"lanes", decltype(lanes)::value},
                       {"shared_bytes", sizeof(typename decltype(body)::Shared)}});
  });
  return {{"num_keys", num_keys},
          {"candidates", plan.items()[0].wanted},
          {"launches", kernels.size()},
          {"workspace_bytes", plan.workspace_bytes()},
          {"kernels", kernels}};
}

}  // namespace

Part LaunchFigures() {
  return {"time-launches", "kernels and blocks of a layer, as planned", 10, true, [](const Rig& rig) {
            PartResult result;
            result.planned = 2;
            const auto codec = MakeBalancedCodec(RandomBalanced(128, 3, rig.options.bits == Bits::kHalf));
            const int group = rig.options.group > 0 ? rig.options.group : 4;
            result.figures = Json::array();
            for (const int64_t keys : {131072, 1048576}) {
              result.figures.push_back(LaunchesOf(keys, group, *codec));
              ++result.count;
            }
            return result;
          }};
}

}  // namespace seine::device
