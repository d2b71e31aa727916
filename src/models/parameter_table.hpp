#pragma once
// The parameters of a model as a table, for the start of a run.
#include <cstdint>
#include <functional>
#include <string>

#include "choir/nn/parameter_set.hpp"

namespace choir {

/// A line a bucket and one a tensor, `width` columns wide; of `layers` blocks, whose buckets are
/// called `blocks` and a number, the first one speaks for all. `note` stands behind a tensor.
std::string parameter_table(const ParameterSet& parameters, const std::string& blocks,
                            std::int64_t layers, int width,
                            const std::function<std::string(const Parameter&)>& note = {});

}  // namespace choir
