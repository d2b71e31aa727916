#pragma once
// What make reads once for all tests: GoogleTest and the parts of the standard library that it
// stands on are half of the time that a test takes to build. Tests include what they use all the
// same.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>
