#pragma once
// The parameters of a model as a table, for the start of a run.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/nn/parameter_set.hpp"

namespace choir {

/// Blocks whose buckets are called `name` and a number: the first one speaks for all.
struct AlikeBlocks {
  std::string name;
  std::int64_t layers = 0;
};

/// A line a bucket and one a tensor, `width` columns wide. `note` stands behind a tensor.
std::string parameter_table(const ParameterSet& parameters, const std::vector<AlikeBlocks>& blocks,
                            int width,
                            const std::function<std::string(const Parameter&)>& note = {});

}  // namespace choir
