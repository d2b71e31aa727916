#pragma once
// A table of the parameters of a model, for the log at the start of a run.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/nn/parameter_set.hpp"

namespace choir {

/// Blocks whose buckets are named `name`.N. Only the first one is listed.
struct AlikeBlocks {
  std::string name;
  std::int64_t layers = 0;
};

/// One line per bucket and one per tensor, `width` columns wide. `note` is appended to the line of
/// a tensor.
std::string parameter_table(const ParameterSet& parameters, const std::vector<AlikeBlocks>& blocks,
                            int width,
                            const std::function<std::string(const Parameter&)>& note = {});

}  // namespace choir
