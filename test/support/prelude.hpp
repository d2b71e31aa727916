#pragma once
// What make compiles once for all tests (see choir/core/prelude.hpp). Tests include what they use
// all the same.
#include <gtest/gtest.h>

#include "choir/core/prelude.hpp"
