#include "src/core/process.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace choir {
namespace {

TEST(KeepForever, NothingIsDestroyed) {
  const auto value = std::make_shared<int>(7);
  keep_forever(value);
  std::thread([&] { keep_forever(value); }).join();
  EXPECT_EQ(value.use_count(), 3);
}

}  // namespace
}  // namespace choir
