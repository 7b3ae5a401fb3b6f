// A deliberate signed overflow, which UndefinedBehaviorSanitizer must report.
#include <cstdio>
#include <limits>

int main(int argc, char**) {
  const int sum = std::numeric_limits<int>::max() + argc;  // argc >= 1
  std::printf("added up to %d and nobody objected\n", sum);
}
