# Exports the shipped data from R's own packages: Rscript export.R (needs r-base-core and r-cran-mass).
biopsy <- MASS::biopsy
biopsy <- biopsy[complete.cases(biopsy), ]
wisconsin <- data.frame(biopsy[, paste0("V", 1:9)], y = as.integer(biopsy$class == "malignant"))
write.csv(wisconsin, "wisconsin.csv", row.names = FALSE, quote = FALSE)
theoph <- as.data.frame(datasets::Theoph)
theoph$Subject <- as.integer(as.character(theoph$Subject))
theoph <- theoph[order(theoph$Subject, theoph$Time), c("Subject", "Wt", "Dose", "Time", "conc")]
names(theoph) <- c("Id", "Weight", "DosePerKg", "Time", "Concentration")
write.csv(theoph, "theophylline.csv", row.names = FALSE, quote = FALSE)
