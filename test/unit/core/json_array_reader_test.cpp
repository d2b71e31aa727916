// Tests of JSON arrays that are read where lines are expected.
#include "src/core/json_array_reader.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"

namespace choir {
namespace {

using Rows = std::vector<std::pair<std::int64_t, std::string>>;

Rows rows_of(std::string_view text) {
  TextRows rows(text, "FILE");
  Rows all;
  for (std::string row; rows.next(row);) all.emplace_back(rows.number(), row);
  return all;
}

std::string fault_of(std::string_view text) {
  try {
    rows_of(text);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(TextRows, AreLines) {
  EXPECT_EQ(rows_of("\xEF\xBB\xBF{\"a\": 1}\r\n\n[2]"),
            (Rows{{1, "{\"a\": 1}"}, {2, ""}, {3, "[2]"}}));
  EXPECT_EQ(rows_of(""), Rows{});
  EXPECT_EQ(rows_of("[laughs]\n[x"), (Rows{{1, "[laughs]"}, {2, "[x"}})) << "plain text";
}

TEST(TextRows, AreElementsOfAnArray) {
  const Rows two{{1, "{\"a\": \"],{\\\"\"}"}, {1, "{\"b\": [1, {}]}"}};
  EXPECT_EQ(rows_of("[{\"a\": \"],{\\\"\"}, {\"b\": [1, {}]}]"), two);
  EXPECT_EQ(rows_of("\xEF\xBB\xBF [\n  {\n    \"a\": 1\n  },\n\n  {\"b\": 2}\n]\n\n"),
            (Rows{{2, "{\n    \"a\": 1\n  }"}, {6, "{\"b\": 2}"}}));
  EXPECT_EQ(rows_of("[]"), Rows{});
  EXPECT_EQ(rows_of("[{}, 1, \"a\"]"), (Rows{{1, "{}"}, {1, "1"}, {1, "\"a\""}}));
}

TEST(TextRows, DamagedArraysAreRefusedWithTheirLine) {
  EXPECT_NE(fault_of("[{}\n{}]").find("FILE:2: no comma"), std::string::npos);
  EXPECT_NE(fault_of("[{},\n{").find("FILE:2: the array is not closed"), std::string::npos);
  EXPECT_NE(fault_of("[{},").find("FILE:1: the array is not closed"), std::string::npos);
  EXPECT_NE(fault_of("[{}]\n{}").find("FILE:2: text follows the array"), std::string::npos);
}

}  // namespace
}  // namespace choir
