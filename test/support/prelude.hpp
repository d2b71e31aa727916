#pragma once
// Headers that make compiles once for all tests (see src/core/prelude.hpp). Tests nevertheless
// include each header that they use.
#include <gtest/gtest.h>

#include "src/core/prelude.hpp"
