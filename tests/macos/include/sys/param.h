#pragma once
#define MAXCOMLEN 16
