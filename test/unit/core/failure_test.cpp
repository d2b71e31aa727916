#include "choir/core/error.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "src/core/json_value.hpp"

namespace choir {
namespace {

template <class Action>
std::string cause_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return plain_cause(error);
  }
  return "";
}

TEST(Failure, TextsOfLibrariesAreReplaced) {
  const auto json = parsed_json(R"({"a": "text", "list": [1]})");
  EXPECT_EQ(cause_of([&] { (void)json.at("b"); }), "the key 'b' is missing");
  EXPECT_EQ(cause_of([&] { (void)json.at("a").get<int>(); }),
            "a value is of type string where number is required");
  EXPECT_EQ(cause_of([&] { (void)json.at("list").at(3); }), "a list has too few elements");
  EXPECT_EQ(cause_of([&] { (void)json.at("a").at("b"); }),
            "a value is of another type than required");
  EXPECT_EQ(cause_of([] { (void)parsed_json("{"); }), "it is not valid JSON");
  EXPECT_EQ(cause_of([] { (void)dumped(nlohmann::json("\xff")); }),
            "a text contains bytes that are not UTF-8");
  EXPECT_EQ(cause_of([] { std::filesystem::rename("no/such/a", "no/such/b"); }),
            "cannot access 'no/such/a' and 'no/such/b': No such file or directory");
  EXPECT_EQ(cause_of([] { (void)std::stoll("x"); }), "a value is malformed");
  EXPECT_EQ(cause_of([] { (void)std::stoi("99999999999"); }), "a value is out of range");
  EXPECT_EQ(cause_of([] { std::vector<int>().reserve(~std::size_t{0}); }),
            "a size is larger than any memory");
  EXPECT_EQ(cause_of([] { throw DataError("a line is cut"); }), "a line is cut");
}

TEST(Failure, AThreadThatCannotBeStarted) {
  const std::system_error error(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_EQ(failure_of(error).text, "the system refuses to start a thread");
  EXPECT_EQ(failure_of(error).hint,
            "raise the limit on memory (ulimit -v) or on processes (ulimit -u)");
}

}  // namespace
}  // namespace choir
