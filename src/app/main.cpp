// The program choir: the entry point with the built-in families.
#include "choir/app/run.hpp"

int main(int argc, char** argv) {
  return choir::run(argc, argv);
}
