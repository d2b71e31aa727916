#include "src/core/json_value.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"

namespace choir {
namespace {

TEST(JsonValue, AKeyThatStandsTwiceIsNamed) {
  const auto refused = [](const char* text) -> std::string {
    try {
      parsed_unique_json(text);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})"), "");
  EXPECT_EQ(refused(R"({"a": 1, "b": 2, "a": 3})"), "the key 'a' stands twice in one object");
  EXPECT_EQ(refused(R"([{"b": {"x": 1, "x": 1}}])"), "the key 'x' stands twice in one object");
  EXPECT_EQ(refused(R"({"b": 1, "\u0062": 1})"), "the key 'b' stands twice in one object");
  EXPECT_EQ(parsed_unique_json(R"({"a": [1, {}]})")["a"][0], 1);
  EXPECT_THROW(parsed_unique_json("{"), nlohmann::json::parse_error);
}

}  // namespace
}  // namespace choir
