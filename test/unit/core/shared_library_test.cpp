#include "src/core/process.hpp"

#include <gtest/gtest.h>

namespace choir {
namespace {

using Cosine = double(double);

TEST(SharedLibrary, FindsAFunctionByName) {
  SharedLibrary math("the C mathematics library", {"libno_such_choir.so.1", "libm.so.6"});
  Cosine* cosine = nullptr;
  math.find(cosine, "cos");
  ASSERT_TRUE(math.loaded()) << math.reason();
  EXPECT_EQ(math.soname(), "libm.so.6");
  EXPECT_TRUE(math.reason().empty());
  EXPECT_EQ(cosine(0.0), 1.0);
}

TEST(SharedLibrary, NamesEveryLibraryItTried) {
  SharedLibrary none("choirLt", {"libno_such_choir.so.2", "libno_such_choir.so.1"});
  Cosine* cosine = [](double x) { return x; };
  none.find(cosine, "cos");
  EXPECT_FALSE(none.loaded());
  EXPECT_EQ(cosine, nullptr);
  EXPECT_TRUE(none.soname().empty());
  EXPECT_NE(none.reason().find("choirLt cannot be loaded"), std::string::npos) << none.reason();
  for (const char* name : {"libno_such_choir.so.2", "libno_such_choir.so.1"})
    EXPECT_NE(none.reason().find(name), std::string::npos) << none.reason();
}

TEST(SharedLibrary, AMissingFunctionMakesItUnusable) {
  SharedLibrary math("the C mathematics library", {"libm.so.6"});
  Cosine *cosine = nullptr, *none = nullptr;
  math.find(none, "choir_has_no_such_function");
  math.find(cosine, "cos");
  EXPECT_FALSE(math.loaded());
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(cosine, nullptr);
  EXPECT_NE(math.reason().find("'choir_has_no_such_function'"), std::string::npos);
}

}  // namespace
}  // namespace choir
