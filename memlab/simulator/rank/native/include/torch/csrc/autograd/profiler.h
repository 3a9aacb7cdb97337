// In place of torch's profiler: c10d/reducer_timer.hpp includes it and uses nothing of it, and the compiler needs as long
// for it as for everything else that guard.cpp includes.
#pragma once
