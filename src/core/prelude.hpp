#pragma once
// Headers that make precompiles for every source, because parsing them takes longer than compiling
// most sources. Sources still include what they use.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/core/tensor.hpp"
#include "src/core/json_value.hpp"
