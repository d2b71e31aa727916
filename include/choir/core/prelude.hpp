#pragma once
// What make compiles once and puts in front of every source: reading these headers takes longer
// than most sources take to compile. Sources include what they use all the same.
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
#include "choir/core/json_value.hpp"
#include "choir/core/tensor.hpp"
