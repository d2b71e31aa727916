#pragma once
// What make compiles once for all tests (see src/core/prelude.hpp). Tests include what they use
// all the same.
#include <gtest/gtest.h>

#include "src/core/prelude.hpp"
